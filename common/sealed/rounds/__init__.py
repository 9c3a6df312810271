"""A sealed round at the coordinator, leg by leg."""
