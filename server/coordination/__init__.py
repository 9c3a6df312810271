"""Drives a study: who takes part, one round after another, from the first to the result."""
