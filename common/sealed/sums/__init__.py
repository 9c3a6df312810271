"""The one sum of a round: who may be in it, what an algorithm sees of it, what is kept."""
