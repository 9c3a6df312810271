"""Faults as they happen in the field, done to real processes, and their cost."""
