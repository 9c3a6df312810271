"""Drives a study: its membership, and one round after another from the first to the result."""
