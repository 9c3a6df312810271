"""Differential privacy of local training: clipped gradients, noise, and what they cost."""
