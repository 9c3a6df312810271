"""Updates under masks that only their sum takes off: keys, shares, whole numbers."""
