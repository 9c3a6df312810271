"""What a person here declined stays declined for every study that would ask no less.

A study asks no less than another where it asks for all of its columns (or more) of this hospital,
in the same role (or as the user), and protects updates no better: it has differential privacy or
sealed rounds only where the other had. Names, seeds, rounds, arms and how they train do not count.
"""

from erosion.client.consent.contracts import contracts_of, local_name
from erosion.client.consent.decisions import WITHIN_LIMITS, study_of
from erosion.client.consent.store import ConsentStore, StudyEntry
from erosion.client.site_file import Site
from erosion.client.training.limits import part_asked
from erosion.common.study.study import Study
from erosion.common.tasks.inputs import ImageTask


def declined_before(site: Site, study: Study, store: ConsentStore) -> StudyEntry | None:
    """The study that a person declined last, and than which this one asks no less."""
    for entry in store.decided():
        if entry.state != "declined" or entry.decided_by == WITHIN_LIMITS:
            continue
        if (declined := study_of(entry)) is not None and _asks_no_less(site, study, declined):
            return entry
    return None


def _asks_no_less(site: Site, study: Study, declined: Study) -> bool:
    new, old = part_asked(site, study), part_asked(site, declined)
    is_better_kept = (new.privacy is not None and old.privacy is None) or (
        new.federation.sealed and not old.federation.sealed
    )
    is_smaller_role = old.user == site.name and new.user != site.name
    asks_for_all = _columns(site, old) <= _columns(site, new)
    return asks_for_all and not is_better_kept and not is_smaller_role


def _columns(site: Site, study: Study) -> set[str]:
    """What they are called here, whatever the study calls them."""
    names = {local_name(site, name) for name in contracts_of(study)}
    return names | ({"images"} if isinstance(study.task, ImageTask) else set())
