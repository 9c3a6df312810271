"""What the report of a finished run is made of."""
