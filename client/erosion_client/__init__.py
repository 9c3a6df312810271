"""The program at a hospital: its data, limits and training, and the agent that serves it."""
