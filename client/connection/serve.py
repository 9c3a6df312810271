"""`erosion client`: load the site once, then serve it until told to stop."""

import hashlib
import logging
from contextlib import closing

from flwr.clientapp import ClientApp

from erosion.client.audit.audit_log import AuditLog
from erosion.client.audit.site_observers import SiteObservers
from erosion.client.connection.agent import Agent, Until
from erosion.client.connection.app import make_app
from erosion.client.connection.credentials import Credentials, credentials_for
from erosion.client.connection.installed_app import AppSite, InstalledApp
from erosion.client.consent.consent import Consent, dataset_of
from erosion.client.consent.recovery import recover_answers
from erosion.client.consent.review_list import used_up
from erosion.client.consent.site_secret import site_secret
from erosion.client.consent.store import ConsentStore
from erosion.client.privacy.privacy_ledger import PrivacyLedger
from erosion.client.privacy.recovery import recover_releases
from erosion.client.sealed.recovery import recover_sums
from erosion.client.sealed.sealed_steps import FOLDER as SEALED
from erosion.client.sealed.sum_ledger import SumLedger
from erosion.client.site_file import Site
from erosion.client.training.hospital import Hospital
from erosion.common.errors import ErosionError

logger = logging.getLogger("erosion.site")


def serve(site: Site, until: Until) -> None:
    """Serve a hospital until interrupted. Raises SiteError, DataError, LinkError."""
    line = credentials_for(site.coordinator)
    folder = site.consent_folder
    secret = site_secret(folder)
    hospital = Hospital(site, b"" if site.compute.public_order else secret, noise_secret=secret)
    store = ConsentStore(folder)
    coordinator = _known_as(line)
    consent = Consent(site, store, coordinator)
    with (
        closing(store),
        AuditLog(
            site.records,
            file_bytes=site.log.file_megabytes * 2**20,
            keep_days=site.log.keep_days,
        ) as audit_log,
    ):
        recover_answers(store, coordinator, dataset_of(site), audit_log.path)
        with closing(PrivacyLedger(folder)) as ledger:
            recover_releases(ledger, dataset_of(site), audit_log.path)
        with closing(SumLedger(folder / SEALED)) as sums:
            recover_sums(sums, audit_log.path)
        watch = SiteObservers(
            site.records,
            audit_log,
            name=site.name,
            coordinator=line.address,
            budgets=lambda: [*used_up(site, store), *hospital.told()],
        )
        agent = Agent(
            lambda: credentials_for(site.coordinator).connect(),  # as the files are by then
            make_app(hospital, consent),
            address=line.address,
            encrypted=line.tls is not None,
            until=until,
            watchers=[watch],
            anew=consent.has_news,  # so that the coordinator asks again
            is_repeated=lambda: consent.is_repeated,
        )
        _run(agent, watch)


def serve_app(site: AppSite, app: ClientApp, until: Until) -> None:
    """Serve an app that is installed here until interrupted. Raises SiteError, LinkError."""
    line = credentials_for(site.coordinator)
    with AuditLog(site.records) as audit_log:
        watch = SiteObservers(site.records, audit_log, name=site.name, coordinator=line.address)
        agent = Agent(
            lambda: credentials_for(site.coordinator).connect(),
            InstalledApp(app, site),
            address=line.address,
            encrypted=line.tls is not None,
            until=until,
            watchers=[watch],
        )
        _run(agent, watch)


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


def _known_as(credentials: Credentials) -> str:
    """What the coordinator is known by in this site's book: whom it trusts, or the address."""
    if credentials.tls is None:
        return credentials.address
    return hashlib.sha256(credentials.tls.root).hexdigest()[:16]
