"""The hospitals' descriptions of their patients before any training, side by side."""
