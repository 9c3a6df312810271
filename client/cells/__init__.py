"""The small-cell rule: cells, rounding, and the record of the figures that left a site."""
