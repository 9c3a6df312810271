"""The testbed, the simulator, the papers' experiments and the benchmarks."""
