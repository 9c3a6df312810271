"""A hospital's own will: which studies a person approved, and what they have used up."""
