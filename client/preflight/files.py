"""Checks the files that a site file names, and their permissions."""

import os
from collections.abc import Iterator
from pathlib import Path

from erosion.client.finding import Finding, failed, ok, warning
from erosion.client.preflight.state import try_to_write
from erosion.client.site_file import AppSite, Site
from erosion.common.errors import SiteError
from erosion.common.support import expiry
from erosion.common.support.files import read_named
from erosion.common.support.keys import (
    certificate_fingerprint,
    certificate_in,
    fingerprint,
    load_private_key,
)
from erosion.common.support.network import is_loopback


def check_site_file(site: Site | AppSite, path: Path) -> Finding:
    """Whoever may write it, or the authority's certificate, decides in this hospital's place."""
    root = site.coordinator.root_certificate
    for each in (path, path.resolve().parent, *([] if root is None else [root])):
        if os.access(each, os.F_OK) and each.stat().st_mode & 0o002:
            return warning(
                "site file",
                f"every account of this machine may write {each}, and so change this site's limits"
                " or whom it trusts",
                f"chmod o-w {each}",
            )
    return ok("site file", f"{path} is {site.name}'s")


def check_proposals(path: Path) -> Iterator[Finding]:
    """What `erosion site new` proposed in the site file and nobody has decided yet."""
    text = read_named(path).decode("utf-8-sig")
    lines = [n for n, line in enumerate(text.splitlines(), 1) if line.startswith("# ?")]
    if lines:
        yield warning(
            "site file",
            f"proposals are still open, on line {', '.join(map(str, lines))}",
            "remove the mark `# ?` where they are right, and the line where they are not",
        )


def check_keys(site: Site | AppSite) -> Iterator[Finding]:
    """The keys, and the folder of records."""
    coordinator = site.coordinator
    if coordinator.private_key is not None:
        yield _private_key(coordinator.private_key)
    if coordinator.certificate is not None:
        yield _certificate(
            "site certificate", coordinator.certificate, "install a new kit from the coordinator"
        )
    if coordinator.root_certificate is not None:
        yield _authority(coordinator.root_certificate)
    elif is_loopback(coordinator.address):
        yield ok("keys", "none are named; none are needed while all runs on this machine")
    else:
        yield failed(
            "keys",
            "none are named, so the connection would be neither encrypted nor signed",
            "name coordinator.root_certificate, .certificate and .private_key; they are in the kit",
        )
    yield _records(site.records_folder)


def _private_key(path: Path) -> Finding:
    try:
        key = load_private_key(path, SiteError)
    except SiteError as problem:
        return _as_failed("private key", problem)
    return ok("private key", f"for its owner alone; fingerprint {fingerprint(key.public_key())}")


def _authority(path: Path) -> Finding:
    return _certificate("coordinator's CA", path, "take ca.crt from the site kit again", alone=True)


def _certificate(what: str, path: Path, remedy: str, *, alone: bool = False) -> Finding:
    try:
        certificate = certificate_in(read_named(path), alone=alone)
    except OSError as problem:
        return failed(what, f"{path}: {problem.strerror}", remedy)
    except ValueError as problem:
        return failed(what, f"{path} holds {problem}", remedy)
    expires = certificate.not_valid_after_utc
    text = f"{expiry.in_words(expires)}; fingerprint {certificate_fingerprint(certificate)}"
    if expiry.has_ended(expires):
        return failed(what, text, "ask the coordinator for a new site kit")
    if expiry.ends_soon(expires):
        return warning(what, text, "ask the coordinator for a new site kit")
    return ok(what, text)


def _records(folder: Path) -> Finding:
    what = "records"
    try:
        try_to_write(folder)
    except OSError as problem:
        return failed(
            what,
            f"{folder} cannot be written ({problem.strerror}), so what is sent cannot be logged",
            f"give this account the folder, or name another with `records`: chown USER {folder}",
        )
    return ok(what, f"{folder} can be written")


def _as_failed(what: str, problem: SiteError) -> Finding:
    text, _, remedy = str(problem).partition(". ")
    return failed(what, text, remedy)
