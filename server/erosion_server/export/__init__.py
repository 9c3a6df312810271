"""A run's model for programs and people without Erosion."""
