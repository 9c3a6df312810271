"""Validated settings: TOML files read into pydantic models."""
