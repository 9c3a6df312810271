"""Benchmarks of a round's cost, beside other systems on the same machine."""
