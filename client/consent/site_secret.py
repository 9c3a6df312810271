"""The site's secret, from which its local randomness is drawn: nobody else can repeat the draws.

If the order of the mini-batches were public, updates from chosen parameters would be a system of
linear equations in the patients' records. A secret order stops that, and not attacks that need no
order: see docs/threat-model.md.
"""

import secrets
from pathlib import Path

from erosion.common.errors import SiteError
from erosion.common.support.files import exposure, make_private_folder, read_named, write_private

FILE_NAME = "secret.key"
NUM_BYTES = 32


def site_secret(folder: Path) -> bytes:
    """Read `folder`/secret.key, or draw it the first time. Raises SiteError."""
    path = folder / FILE_NAME
    try:
        if not path.exists():
            if not folder.exists():
                make_private_folder(folder)
            write_private(path, secrets.token_bytes(NUM_BYTES), first_stays=True)
        secret, exposed = read_named(path), exposure(path)
    except OSError as problem:
        raise SiteError(
            f"The site's secret {path} cannot be used ({problem.strerror}). Name a folder that can"
            " be written to: compute.state in the site file."
        ) from None
    if exposed:
        raise SiteError(f"The site's secret {path} is not private: {exposed}")
    if len(secret) != NUM_BYTES:
        raise SiteError(
            f"The site's secret {path} has {len(secret)} bytes instead of {NUM_BYTES}. Restore it"
            " from a backup: without it no patient of earlier figures is known again."
        )
    return secret
