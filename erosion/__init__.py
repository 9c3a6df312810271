"""Personalised collaborative learning for hospitals, on Flower."""
