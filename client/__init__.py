"""What runs at a hospital: its data, its limits, its training, and the agent that serves it."""
