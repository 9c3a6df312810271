"""`erosion check`: whether this site could take part, looked into one thing after another."""

from erosion.client.preflight.check import check_site

__all__ = ["check_site"]
