"""Distances between updates that neither side shows, under Paillier."""
