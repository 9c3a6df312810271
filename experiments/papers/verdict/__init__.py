"""How often the verdict claims a difference that is not there, and how often one that is."""
