"""Keys that must not come in, while a study runs."""

from erosion.client.enrolment.install import install
from erosion.client.site_file import load_site
from erosion.experiments.faults.at_a_site import SITE
from erosion.experiments.faults.row import Observation, Row
from erosion.experiments.faults.stage import Stage
from erosion.server.enrolment.enrolment import renew_site, revoke_site


def duplicate_key(stage: Stage) -> Row:
    """A copy of a site's folder is started elsewhere, while the site is connected."""
    stage.begin()
    seen = Observation(stage, "the same key a second time", SITE)
    stage.copied_site(SITE).wait_for("in use")
    stage.wait_for_rounds(len(stage.rounds) + 2)
    return seen.row(said_by="copy")


def expired_key(stage: Stage) -> Row:
    """A site's key expires in the middle of the study and is renewed."""
    bob = stage.begin()[SITE]
    seen = Observation(stage, "a site's key expires; it is renewed", SITE)
    renew_site(stage.federation, SITE, days=-1)
    bob.wait_for("expired")
    bob.wait_until(lambda: bob.exit_code is not None, "end")
    install(renew_site(stage.federation, SITE).kit, load_site(stage.site_file(SITE)))
    seen.repaired()
    stage.site(SITE)
    seen.wait_until_back()
    return seen.row()


def revoked(stage: Stage) -> Row:
    """A site's key is revoked in the middle of the study."""
    bob = stage.begin()[SITE]
    seen = Observation(stage, "a site's key is revoked", SITE)
    revoke_site(stage.federation, SITE)
    bob.wait_until(lambda: bob.exit_code is not None, "end")
    stage.wait_for_rounds(len(stage.rounds) + 2)
    return seen.row()
