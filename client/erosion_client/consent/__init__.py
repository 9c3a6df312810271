"""A hospital's decisions: which studies a person approved, and what they have used up."""
