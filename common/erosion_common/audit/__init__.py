"""A site's log, and what a coordinator keeps to compare it with."""
