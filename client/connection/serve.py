"""`erosion client`: serve a site until told to stop."""

import logging
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from flwr.clientapp import ClientApp

from erosion.client.audit.audit_log import AuditLog
from erosion.client.audit.site_observers import SiteObservers
from erosion.client.connection.agent import Agent, Until
from erosion.client.connection.credentials import credentials_for, known_as
from erosion.client.connection.installed_app import InstalledApp
from erosion.client.connection.running_site import RunningSite
from erosion.client.records.account import claim, dataset_of, site_secret
from erosion.client.records.records import Records
from erosion.client.records.recovery import recover
from erosion.client.site_file import AppSite, Site, load_site
from erosion.common.errors import ErosionError
from erosion.common.support.files import version_of

logger = logging.getLogger("erosion.site")


def serve(path: Path, until: Until) -> None:
    """Serve a hospital, by its site file, until interrupted. Raises SiteError, LinkError."""
    version = version_of(path)  # before reading: what changes meanwhile is newer
    site = load_site(path)
    line = credentials_for(site.coordinator)
    claim(site)
    secret = site_secret(site.consent_folder)
    records = Records.of(site)
    running = RunningSite(path, site, records, secret=secret, version=version)
    with (
        closing(records),
        _audit_log(site, lambda: running.dataset) as audit_log,
    ):
        recover(records, known_as(line), dataset_of(site), audit_log.path)
        watch = SiteObservers(
            site.records_folder,
            audit_log,
            name=site.name,
            coordinator=line.address,
            budgets=running.budgets,
            site_file=lambda: running.news,
            study_named=running.study_named,
            certificate_expires=lambda: running.certificate_expires,
        )
        agent = Agent(
            running.connect,
            running,
            address=line.address,
            encrypted=line.tls is not None,
            until=until,
            watchers=[watch],
            anew=running.has_changed,
            has_decided=running.has_decided,
            is_repeated=running.is_repeated,
        )
        _run(agent, watch)


def serve_app(site: AppSite, app: ClientApp, until: Until) -> None:
    """Serve an app that is installed here until interrupted. Raises SiteError, LinkError."""
    line = credentials_for(site.coordinator)
    with _audit_log(site, str) as audit_log:
        watch = SiteObservers(
            site.records_folder,
            audit_log,
            name=site.name,
            coordinator=line.address,
            certificate_expires=lambda: line.expires,
        )
        agent = Agent(
            lambda: credentials_for(site.coordinator).connect(),
            InstalledApp(app, site),
            address=line.address,
            encrypted=line.tls is not None,
            until=until,
            watchers=[watch],
        )
        _run(agent, watch)


def _audit_log(site: Site | AppSite, dataset: Callable[[], str]) -> AuditLog:
    return AuditLog(
        site.records_folder,
        hospital=site.name,
        dataset=dataset,
        file_bytes=site.log.file_megabytes * 2**20,
        keep_days=site.log.keep_days,
    )


def _run(agent: Agent, watch: SiteObservers) -> None:
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
