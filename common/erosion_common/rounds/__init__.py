"""The rounds of a run: screening, aggregation, state, checkpoints and model selection."""
