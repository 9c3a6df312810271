"""The version of this program."""

from importlib import metadata


def software_version() -> str:
    """As it is installed; "unknown" where it only lies in a folder."""
    try:
        return metadata.version("erosion")
    except metadata.PackageNotFoundError:
        return "unknown"
