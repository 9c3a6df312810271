"""What a site's data are known by in its own books."""

import hashlib
import os

from erosion.client.site_file import Site


def dataset_of(site: Site) -> str:
    """SHA-256 of where they are."""
    path = getattr(site.data, "path", None)  # a database has an address instead
    place = os.path.realpath(path) if path is not None else str(getattr(site.data, "url", ""))
    return hashlib.sha256(place.encode(errors="surrogateescape")).hexdigest()[:16]
