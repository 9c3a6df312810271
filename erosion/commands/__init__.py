"""Commands for trying a study on one machine."""
