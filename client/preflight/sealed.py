"""Checks what a site needs for sealed rounds, and shows the keys that people should compare."""

import os
from collections.abc import Iterator

from erosion.client.finding import Finding, failed, ok, skipped
from erosion.client.sealed.sealed_steps import sum_rules
from erosion.client.site_file import Site
from erosion.common.errors import SiteError
from erosion.common.sealed.pinned_keys import read_pinned_keys
from erosion.common.study.study import Study
from erosion.common.support.keys import fingerprint

_REMEDY = (
    "ask the coordinator for peers.pem (erosion enroll peers), then `erosion enroll pin peers.pem"
    " SITE.toml` here"
)


def check_sealed(site: Site, study: Study | None) -> Iterator[Finding]:
    """The other hospitals' keys; they must be there where the study has sealed rounds."""
    what, path = "sealed rounds", site.sealed.peers
    needed = study is not None and study.federation.sealed
    if path is None or not os.access(path, os.F_OK):
        if needed:
            yield failed(what, f"there is no {path}, and this study's rounds are sealed", _REMEDY)
        else:
            yield skipped(what, "there is no peers.pem, which only sealed studies need")
        return
    if site.sealed.private_key is None and site.coordinator.private_key is None:
        yield failed(what, "this site has no private key", "enrol it; the key is in the kit")
        return
    try:
        keys = read_pinned_keys(path, SiteError)
    except SiteError as problem:
        text, _, remedy = str(problem).partition(". ")
        yield failed(what, text, remedy)
        return
    yield ok(
        what,
        "the others' keys, to be compared with each hospital itself, not with the coordinator:\n"
        + "\n".join(f"{name}  {fingerprint(keys[name])}" for name in sorted(keys)),
    )
    missing = sorted(set(study.hospitals) - {study.user, site.name} - set(keys)) if study else []
    if needed and missing:
        yield failed(what, f"the keys of {', '.join(missing)} are not in {path}", _REMEDY)
    if needed and study is not None and site.name != study.user:
        yield from _sums(site, set(study.hospitals) - {study.user})


def _sums(site: Site, peers: set[str]) -> Iterator[Finding]:
    """Whether this site would be in a sum of all of them, each with as much weight."""
    rules = sum_rules(site)
    alike = dict.fromkeys(peers, 1 / len(peers))
    if problem := rules.problem_with_holders(peers) or rules.problem_with(alike):
        yield failed(
            "sealed rounds",
            f"this site would take part in none, even if everybody is there: {problem}",
            "name more hospitals in limits.summed_with that people here know, or loosen"
            " limits.min_summed and limits.largest_share; it is your decision",
        )
