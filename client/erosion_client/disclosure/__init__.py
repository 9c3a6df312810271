"""Disclosure control: no figure about fewer patients than a cell leaves a hospital."""
