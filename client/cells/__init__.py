"""What keeps a site's figures from being about a few patients: cells, rounding, what was told."""
