"""Files, keys, logs, memory and processes: every program's dealings with its machine."""
