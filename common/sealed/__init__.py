"""Sealed rounds: sums and distances of updates that nobody but their hospital ever sees."""
