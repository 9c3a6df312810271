"""The coordinator's end of the line: gRPC with mutual TLS, and Flower's Grid above it.

Sites open one stream each and keep it (`erosion.common.line.frames`, docs/line.md). One thread
serves all of them on an event loop, so a site that waits costs no thread. Of Flower, only the
public interface is used.
"""

from erosion.server.link.grid import LEFT, NODE_LEFT, UNREADABLE, LinkGrid
from erosion.server.link.link import Link

__all__ = ["LEFT", "NODE_LEFT", "UNREADABLE", "Link", "LinkGrid"]
