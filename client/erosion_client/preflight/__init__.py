"""`erosion check`: checks everything that taking part in a study needs, step by step."""
