"""Metrics, the verdict's test, and predictions for new patients."""
