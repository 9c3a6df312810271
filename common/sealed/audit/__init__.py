"""What remains of a sum that does not fit its distances, and what opened masks show."""
