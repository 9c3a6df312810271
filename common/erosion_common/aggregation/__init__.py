"""One round's updates as vectors: cohorts in memory and on disk, and their norms and distances."""
