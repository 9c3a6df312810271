"""`erosion client`: load the site once, then serve it until told to stop."""

import logging

from client.agent import Agent
from client.app import make_app
from client.fleet import FleetConnection
from client.hospital import Hospital
from client.site_file import Site
from common.errors import SiteError
from common.network import is_loopback

logger = logging.getLogger("erosion.site")


def serve(site: Site, *, give_up_seconds: float | None = None) -> None:
    """Serve until interrupted. Raises SiteError, DataError, LinkError."""
    coordinator = site.coordinator
    if coordinator.root_certificate is None and not is_loopback(coordinator.address):
        raise SiteError(
            f"coordinator.address = {coordinator.address!r}; without coordinator.root_certificate"
            " the line is not encrypted, which is allowed on this machine only (127.0.0.1)"
        )
    hospital = Hospital(site)

    def connect() -> FleetConnection:
        return FleetConnection(coordinator.address, root_certificate=coordinator.root_certificate)

    agent = Agent(
        connect, make_app(hospital), address=coordinator.address, give_up_seconds=give_up_seconds
    )
    try:
        agent.run()
    except KeyboardInterrupt:
        agent.stop.set()
        logger.info("stopped")
