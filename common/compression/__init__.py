"""Parameters and updates in fewer bytes, for slow lines; see docs/compression.md."""
