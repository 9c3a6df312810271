"""Commands for every machine."""
