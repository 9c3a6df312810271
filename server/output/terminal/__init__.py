"""What a person at the terminal sees of a run."""
