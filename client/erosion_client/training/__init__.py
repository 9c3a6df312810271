"""A hospital's answers to requests, within its own limits."""
