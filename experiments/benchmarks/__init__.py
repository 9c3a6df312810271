"""Benchmarks of a round's cost, compared with other systems on the same machine."""
