"""What goes wrong in the field, done to real processes, and what it costs."""
