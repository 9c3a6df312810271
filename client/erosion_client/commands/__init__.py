"""Commands for a hospital's machine."""
