"""One harmful hospital: what each method makes of it."""
