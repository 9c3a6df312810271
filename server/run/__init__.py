"""What a run leaves behind: its folder, journal, decisions, ledger, status and result."""
