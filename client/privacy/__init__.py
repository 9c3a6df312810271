"""A hospital's own account of its patients' privacy: what updates with noise have cost them."""
