"""The study file: its schema, its validation and its digest."""
