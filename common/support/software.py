"""This program as it is installed: its version, and what its extras need."""

import re
from importlib import metadata
from shlex import quote

OF_AN_EXTRA = re.compile(r"""(.+?)\s*;\s*extra == ["']([\w-]+)["']""")


def software_version() -> str:
    """As it is installed; "unknown" where it only lies in a folder."""
    try:
        return metadata.version("erosion")
    except metadata.PackageNotFoundError:
        return "unknown"


def install_command(extra: str) -> str:
    """The command that installs an extra's packages, by their own names and versions.

    The name `erosion` on PyPI is another program's. Where ours only lies in a folder, the command
    is for there.
    """
    try:
        requirements = metadata.requires("erosion") or []
    except metadata.PackageNotFoundError:
        requirements = []
    found = [OF_AN_EXTRA.fullmatch(requirement) for requirement in requirements]
    packages = [match[1] for match in found if match and match[2] == extra]
    return " ".join(["pip install", *map(quote, packages or [f".[{extra}]"])])
