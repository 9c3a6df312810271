"""Thousands of hostile connections against a running coordinator, and what honest sites notice."""
