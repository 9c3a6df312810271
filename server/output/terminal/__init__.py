"""A run as a person at the terminal sees it."""
