"""The files of a run: its folder, journal, decisions, ledger, status and result."""
