"""What both sides agree on: studies, algorithms, models, local training, and the wire format."""
