"""The files of a run: its folder, journal, decisions, contributions, status and result."""
