"""The verdict's error rates: claims of a difference that is not there, and of one that is."""
