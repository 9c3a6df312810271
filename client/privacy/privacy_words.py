"""The privacy that studies cost this hospital's patients, in words for its own people."""

from collections.abc import Iterator
from contextlib import closing
from math import inf

from erosion.client.consent.account import dataset_of
from erosion.client.privacy.privacy_ledger import FILE_NAME, PrivacyLedger, Spent
from erosion.client.privacy.private_rounds import ledger_folder
from erosion.client.site_file import Site
from erosion.common.privacy.accountant import ROUNDING, epsilon_of
from erosion.common.study.study import Study


def promised(site: Site, study: Study) -> Iterator[str]:
    """How updates of the study are made here, and what a run costs; nothing without [privacy]."""
    terms = study.privacy
    if terms is None:
        return
    step = "a round is one step with the gradients of all patients"
    if site.name == study.user:
        yield f"{step}, each cut to a length of {terms.clip_norm:g}; as the user, without noise"
        return
    noise = terms.noise_multiplier(study.num_releases)
    yield (
        f"{step}, each cut to a length of {terms.clip_norm:g}, with noise of {noise:.3g} times that"
    )
    delta = site.limits.delta
    cost = _epsilon(study.privacy_cost, delta)
    yield (
        f"a run costs each patient epsilon {cost} at delta {delta:g} (limits.delta; the study"
        f" promises epsilon {terms.epsilon:g} at delta {terms.delta:g});"
        f" spent so far: {_epsilon(_spent(site, study.digest).by_study, delta)} by this study"
        f"{_of(site.limits.epsilon, 'limits.epsilon')},"
        f" {_epsilon(_spent(site).in_all, delta)} by all on these data"
        f"{_of(site.lifetime_epsilon, 'budget.epsilon')}"
    )


def problem_with_cost(site: Site, study: Study) -> str | None:
    """Why a new run does not fit into what is left here, or None."""
    if site.lifetime_epsilon is None or site.name == study.user:
        return None
    delta = site.limits.delta
    after = epsilon_of(_spent(site).in_all + study.privacy_cost, delta)
    if after <= site.lifetime_epsilon * ROUNDING:
        return None
    return (
        f"after a run all studies would have cost each patient epsilon {after:.3g} at delta"
        f" {delta:g}; budget.epsilon = {site.lifetime_epsilon:g}"
    )


def has_begun(site: Site, study: Study) -> bool:
    """Whether a run of the study has cost something here, which may go on without a new one."""
    return _spent(site, study.digest).by_study > 0


def spent_here(site: Site) -> list[str]:
    """What has been spent on this site's data; empty where nothing was, and nothing is limited."""
    delta, found = site.limits.delta, _spent(site).in_all
    if not found and site.lifetime_epsilon is None:
        return []
    left = ""
    if site.lifetime_epsilon is not None:
        rest = max(0.0, site.lifetime_epsilon - epsilon_of(found, delta))
        left = f" of {site.lifetime_epsilon:g} (budget.epsilon), {rest:.3g} left"
    return [
        f"Privacy of each patient: epsilon {_epsilon(found, delta)} spent{left}, at delta {delta:g}"
    ]


def _of(most: float | None, key: str) -> str:
    return "" if most is None else f" (of {most:g}, {key})"


def _epsilon(strength: float, delta: float) -> str:
    found = epsilon_of(strength, delta)
    return "without bound" if found == inf else f"{found:.3g}"


def _spent(site: Site, study: str = "") -> Spent:
    folder = ledger_folder(site)
    if folder is None or not (folder / FILE_NAME).exists():
        return Spent(0.0, 0.0, 0.0)
    with closing(PrivacyLedger(folder)) as ledger:
        return ledger.spent(dataset_of(site), study)
