"""`erosion check`: checks everything that taking part in a study needs, step by step."""

from erosion_client.preflight.check import check_site

__all__ = ["check_site"]
