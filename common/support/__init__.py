"""Files, keys, logs, memory and processes: what every program here needs of its machine."""
