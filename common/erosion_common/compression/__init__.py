"""Parameters and updates in fewer bytes, for slow links; see docs/compression.md."""
