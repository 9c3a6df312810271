"""`erosion client`: load the site once, then serve it until told to stop."""

import logging

from client.agent import Agent
from client.app import make_app
from client.hospital import Hospital
from client.line import line_to
from client.outbox import Outbox
from client.site_file import Site
from client.site_watch import SiteWatch
from common.errors import ErosionError

logger = logging.getLogger("erosion.site")


def serve(
    site: Site, *, give_up_seconds: float | None = None, until_study_ends: bool = False
) -> None:
    """Serve until interrupted. Raises SiteError, DataError, LinkError."""
    line = line_to(site.coordinator)
    hospital = Hospital(site)
    with Outbox(site.records) as outbox:
        watch = SiteWatch(site.records, outbox, name=site.name, coordinator=line.address)
        agent = Agent(
            line.connect,
            make_app(hospital),
            address=line.address,
            encrypted=line.root_certificate is not None,
            give_up_seconds=give_up_seconds,
            until_study_ends=until_study_ends,
            watchers=[watch],
        )
        try:
            agent.run()
            watch.end("the program ended")
        except KeyboardInterrupt:
            agent.stop.set()
            watch.end("the program was stopped")
            logger.info("stopped")
        except ErosionError as problem:
            watch.end(str(problem))
            raise
