"""What runs beside the user: the coordinator, its strategy, the journal and the report."""
