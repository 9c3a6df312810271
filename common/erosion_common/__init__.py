"""Shared by both sides: studies, algorithms, models, local training and the wire format."""
