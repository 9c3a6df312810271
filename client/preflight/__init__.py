"""`erosion check`: checks everything that taking part in a study needs, one thing at a time."""

from erosion.client.preflight.check import check_site

__all__ = ["check_site"]
