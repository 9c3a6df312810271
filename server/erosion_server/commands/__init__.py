"""Commands for the coordinator's machine."""
