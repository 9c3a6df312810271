"""A hospital's patients: read, validated, split and encoded."""
