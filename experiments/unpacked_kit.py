"""A site kit, unpacked as the guide tells a hospital to."""

import subprocess
import tarfile
from pathlib import Path


def unpack_kit(kit: Path, to: Path) -> Path:
    """Unpack the site kit into the folder `to`; returns the site's own folder in it."""
    to.mkdir(parents=True, exist_ok=True)
    subprocess.run(["tar", "--extract", "--file", kit, "--directory", to], check=True)
    with tarfile.open(kit) as archive:
        return to / archive.getnames()[0]
