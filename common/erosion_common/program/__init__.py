"""The command line: its commands, their options, and how a program ends."""
