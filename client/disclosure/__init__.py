"""Disclosure control: what a hospital says about its patients is never about fewer than a cell."""
