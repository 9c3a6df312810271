"""The coordinator's end of the link: gRPC with mutual TLS, and Flower's Grid above it.

Sites open one stream each and keep it (`erosion_common.protocol.frames`, docs/link.md). One thread
serves all of them on an event loop, so a waiting site costs no thread. Each study has a channel.
Only Flower's public interface is used.
"""

from erosion_server.link.channel import LEFT, NODE_LEFT, UNREADABLE, LinkGrid
from erosion_server.link.link import Link

__all__ = ["LEFT", "NODE_LEFT", "UNREADABLE", "Link", "LinkGrid"]
