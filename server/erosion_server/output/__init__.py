"""Shows a run to people: terminal, log lines, report."""
