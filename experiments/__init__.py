"""The papers' experiments and the benchmarks; run from a checkout, in no wheel."""
