"""What the hospitals of a study tell of their patients before any training."""
