"""Checks whether people here decided about the study, without which no site takes part."""

from contextlib import closing

from erosion.client.consent.decisions import decision_about, too_many_approved
from erosion.client.consent.store import FILE_NAME, ConsentStore
from erosion.client.finding import Finding, failed, ok, warning
from erosion.client.site_file import Site
from erosion.common.errors import SiteError
from erosion.common.study.study import Study

WHAT = "approval"


def check_approval(site: Site, study: Study, review: str) -> Finding:
    """What stands in the book; nothing is written. `review`: the command that decides."""
    if not (site.consent_folder / FILE_NAME).exists():
        return _undecided(site, None, review)
    try:
        with closing(ConsentStore(site.consent_folder)) as store:
            entry = decision_about(study, store)
            full = too_many_approved(site, store)
    except SiteError as problem:
        return failed(WHAT, str(problem), "restore the file, or name another compute.state")
    if entry is None:
        return _undecided(site, full, review)
    if entry.state == "declined":
        return failed(
            WHAT,
            f"this study was declined by {entry.decided_by}, {entry.decided}",
            f"{review} shows it; --approve takes part in it after all",
        )
    return ok(WHAT, f"approved by {entry.decided_by}, {entry.decided}")


def _undecided(site: Site, full: str | None, review: str) -> Finding:
    if full is not None:
        return failed(
            WHAT,
            full,
            "raise budget.studies in the site file, or decline one that is over; it is your"
            " decision",
        )
    if site.approval.automatic != "within_limits":
        return warning(
            WHAT,
            "nobody here has approved this study yet, so the site takes no part in it",
            f"{review} shows it in plain words; then approve or decline it",
        )
    return ok(WHAT, 'not asked for yet; approval.automatic = "within_limits" approves it')
