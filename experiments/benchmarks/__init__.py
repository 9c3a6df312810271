"""Measurements of what a round costs, ours beside other systems on the same machine."""
