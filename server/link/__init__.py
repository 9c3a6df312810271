"""Flower's SuperLink inside the coordinator's process, and the Grid that the strategy talks to.

The only package of this side that uses Flower's private names. Two things differ from the stock
`flower-superlink`, and sites need not know of either: a site's `PullMessages` is answered when
there is a message for it (or after a while) instead of at once, so nobody polls; and where that
waiting call breaks off, the site is known to be gone without waiting for a heartbeat to lapse.
There is no Control API, no ServerAppIo API, and no code bundle for sites to run.

Every call is held against the enrolment, beside Flower's own check of its signature, so that a key
that was revoked or has expired is out at once.
"""

from erosion.server.link.fleet_api import Fleet
from erosion.server.link.grid import NODE_LEFT, UNREADABLE, LinkGrid, received_bytes
from erosion.server.link.superlink import Link

__all__ = ["NODE_LEFT", "UNREADABLE", "Fleet", "Link", "LinkGrid", "received_bytes"]
