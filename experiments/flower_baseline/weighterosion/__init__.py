"""Weight Erosion on the Titanic, in the layout of Flower's baselines."""
