"""Checks a site's files, limits, machine and records, runs every check, and shows the table."""

import os
from collections.abc import Iterator, Mapping
from contextlib import closing
from errno import EACCES
from pathlib import Path
from shlex import quote
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from erosion_client.consent.approvals import (
    decision_about,
    too_little,
    too_many_approved,
    used_by_a_run,
    used_up,
    was_answered,
)
from erosion_client.disclosure.control import DisclosureControl
from erosion_client.finding import Finding, Severity, failed, failed_by, ok, skipped, warning
from erosion_client.preflight.network import check_network
from erosion_client.preflight.study_checks import (
    CAN_CONTINUE,
    check_model,
    check_sealed,
    check_study_here,
)
from erosion_client.records.account import SECRET_NAME, other_accounts, site_secret
from erosion_client.records.records import Records
from erosion_client.site_file import AppSite, Site, is_for_app, load_app_site, load_site
from erosion_client.training.limits import allow_only_these, part_asked, problem_with_device
from erosion_common.errors import SiteError
from erosion_common.rounds.bounds import problem_with_heads
from erosion_common.study.study import Study, load_study
from erosion_common.support import expiry
from erosion_common.support.files import read_named
from erosion_common.support.keys import (
    certificate_fingerprint,
    certificate_in,
    fingerprint,
    load_private_key,
)
from erosion_common.support.network import is_loopback
from erosion_common.support.text import open_questions, shown


def check_site_file(site: AppSite, path: Path) -> Finding:
    """Check who may write it: that account, or the authority's certificate, acts for the site."""
    root = site.coordinator.root_certificate
    for each in (path, path.resolve().parent, *([] if root is None else [root])):
        if os.access(each, os.F_OK) and each.stat().st_mode & 0o002:
            return warning(
                "site file",
                f"every account of this machine may write {each}, and so change this site's limits"
                " or which coordinator it trusts",
                f"chmod o-w {each}",
            )
    return ok("site file", f"{path} is {site.name}'s")


def check_proposals(site_file: Path, study_file: Path | None) -> Iterator[Finding]:
    """Check for proposals and questions of a draft of either file that nobody has decided yet."""
    if lines := open_questions(read_named(site_file)):
        yield warning(
            "site file",
            f"proposals are still open, on line {', '.join(map(str, lines))}",
            "remove the mark `# ?` where they are right, and the line where they are not",
        )
    asked = open_questions(read_named(study_file)) if study_file is not None else {}
    for number, question in asked.items():
        yield warning(
            "study",
            f"line {number} asks: {question}",
            "decide it with the coordinator, who then removes the line",
        )


def check_keys(site: AppSite) -> Iterator[Finding]:
    """Check the keys, and the records folder."""
    coordinator = site.coordinator
    if coordinator.private_key is not None:
        try:
            key = load_private_key(coordinator.private_key, SiteError).public_key()
            yield ok("private key", f"for its owner alone; fingerprint {fingerprint(key)}")
        except SiteError as problem:
            yield failed_by("private key", problem)
    if coordinator.certificate is not None:
        remedy = "install a new kit from the coordinator"
        yield _certificate("site certificate", coordinator.certificate, remedy)
    if coordinator.root_certificate is not None:
        remedy = "take ca.crt from the site kit again"
        yield _certificate("coordinator's CA", coordinator.root_certificate, remedy, alone=True)
    elif is_loopback(coordinator.address):
        yield ok("keys", "none are named; none are needed while all runs on this machine")
    else:
        yield failed(
            "keys",
            "none are named, so the connection would be neither encrypted nor signed",
            "name coordinator.root_certificate, .certificate and .private_key; they are in the kit",
        )
    folder = site.records_folder
    try:
        try_to_write(folder)
        yield ok("records", f"{folder} can be written")
    except OSError as problem:
        yield failed(
            "records",
            f"{folder} cannot be written ({problem.strerror}), so what is sent cannot be logged",
            f"give this account the folder, or name another with `records`: chown USER {folder}",
        )


def _certificate(what: str, path: Path, remedy: str, *, alone: bool = False) -> Finding:
    try:
        certificate = certificate_in(read_named(path), alone=alone)
    except (OSError, ValueError) as problem:
        said = problem.strerror if isinstance(problem, OSError) else f"it holds {problem}"
        return failed(what, f"{path}: {said}", remedy)
    expires = certificate.not_valid_after_utc
    text = f"{expiry.in_words(expires)}; fingerprint {certificate_fingerprint(certificate)}"
    if not (expiry.ends_soon(expires) or expiry.has_ended(expires)):
        return ok(what, text)
    say = failed if expiry.has_ended(expires) else warning
    return say(what, text, "ask the coordinator for a new site kit")


# By how a value of the site file can protect less than its default. A test finds a missing key.
WEAKER: Mapping[str, tuple[str, ...]] = {
    "lower": (
        "limits.min_patients limits.min_cell limits.min_class limits.min_local_steps",
        "limits.min_batch_size limits.min_summed log.keep_days approval.people",
    ),
    "higher": (  # None: no limit
        "limits.max_rounds limits.max_parameters limits.epsilon limits.delta limits.largest_share",
        "limits.largest_round budget.studies budget.runs_per_study budget.rounds",
        "budget.evaluations budget.sets budget.variants budget.epsilon",
    ),
    "other": (
        "limits.installed_models limits.installed_methods limits.installed_tasks",
        "approval.automatic compute.public_order coordinator.proxy",
    ),
    "never": (
        "limits.studies limits.models limits.as_user limits.sealed_only limits.summed_with",
        "limits.validation",
        "log.file_megabytes compute.threads compute.device compute.state compute.weights",
        "compute.account",
        "coordinator.address coordinator.root_certificate coordinator.certificate",
        "coordinator.private_key",
    ),
}


def weaker_values(site: AppSite) -> Iterator[tuple[str, str]]:
    """Yield key and value of each, with the default: ("limits.min_cell", "3 (by default 10)")."""
    for way, lines in WEAKER.items():
        for name in " ".join(lines).split():
            table, _, key = name.partition(".")
            if (group := getattr(site, table, None)) is None:
                continue
            field = type(group).model_fields[key]
            default = field.get_default(call_default_factory=True)
            value = getattr(group, key)
            if name == "budget.epsilon" and isinstance(site, Site):  # left out, it is that limit
                default, value = site.limits.epsilon, site.lifetime_epsilon
            if not field.is_required() and _is_weaker(way, value, default):
                said = "one is named" if not field.repr else _word(value)
                yield name, f"{said} (by default {_word(default)})"


def _is_weaker(way: str, value: Any, default: Any) -> bool:
    if way == "lower":
        return bool(value < default)
    if way == "higher":
        return default is not None and (value is None or bool(value > default))
    return way == "other" and bool(value != default)


def check_weaker(site: AppSite) -> Iterator[Finding]:
    """Yield every one of them, or that there is none."""
    found = False
    for key, value in weaker_values(site):
        found = True
        yield warning(
            "weaker",
            f"{key} = {value} protects this hospital's patients less than the default",
            "leave the line out, unless people here decided so",
        )
    if not found:
        yield ok("limits", "no value protects less than the program's default")


def _word(value: Any) -> str:
    if value is None or value in ((), {}):
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


def check_compute(site: Site) -> Finding:
    """Check that the device can be used, so that no study fails after it began."""
    what, device = "compute", site.compute.device
    if reason := problem_with_device(device):
        return failed(
            what,
            f'compute.device = "{device}" cannot be used: {reason}',
            'write device = "cpu" under [compute], or repair the driver and install a torch for it',
        )
    return ok(what, f"{device}, {site.compute.threads} thread(s)")


def check_state(site: Site) -> Finding:
    """Check the site's secret and its records, as far as they exist; nothing is left behind."""
    what, folder = "state", site.consent_folder
    try:
        try_to_write(folder)
        secret = site_secret(folder) if (folder / SECRET_NAME).exists() else b""
        with closing(Records.existing(site)) as records:
            records.check_secret(secret, first=False)
            if records.path is not None and not os.access(records.path, os.W_OK):
                raise PermissionError(EACCES, os.strerror(EACCES), str(records.path))
            records.studies.all()
    except OSError as problem:
        return failed(
            what,
            f"{folder} cannot be used ({problem.strerror}), so what is answered cannot be noted",
            "give this account the folder and its files, or name another with compute.state",
        )
    except SiteError as problem:
        return failed_by(what, problem)
    for other in other_accounts(site):
        return warning(what, *other)
    return ok(what, f"{folder} can be written")


def try_to_write(folder: Path) -> None:
    """Write and remove a file in `folder`, or where it would be made. Raises OSError."""
    place = folder
    while not place.exists():
        place = place.parent
    with TemporaryDirectory(dir=place):
        pass


def check_approval(site: Site, study: Study, review: str, records: Records) -> Finding:
    """Check whether people here decided about the study. `review`: the deciding command."""
    what, entry = "approval", decision_about(site, study, records)
    if entry is not None:
        said = f"this study was {entry.state} by {entry.decided_by}, {entry.decided}"
        remedy = f"{review} shows it; --approve takes part in it after all"
        return failed(what, said, remedy) if entry.state == "declined" else ok(what, said)
    if full := too_many_approved(site, records):
        remedy = "raise budget.studies in the site file, or decline one that is over"
        return failed(what, full, f"{remedy}; it is your decision")
    if site.approval.automatic != "within_limits":
        return warning(
            what,
            "nobody here has approved this study yet, so the site takes no part in it",
            f"{review} shows it in plain words; then approve or decline it",
        )
    return ok(what, 'not asked for yet; approval.automatic = "within_limits" approves it')


def check_budgets(site: Site, records: Records) -> Iterator[Finding]:
    """Show the smallest cell, and each coordinator's use of the budgets."""
    cell = site.limits.min_cell
    disclosed = DisclosureControl(site, records=records).disclosed()
    yield ok("smallest cell", f"{cell} patients: no figure about fewer leaves (limits.min_cell)")
    yield ok("budgets", "\n".join([*used_up(site, records), *disclosed]))


def check_run(site: Site, study: Study, records: Records) -> Finding:
    """Check whether enough is left for a run of the study."""
    what, problems = "a run", "; ".join(too_little(site, study, records))
    if not problems:
        return ok(what, "\n".join(used_by_a_run(site, study)))
    remedy = "for a new run raise that under [budget]; it is your decision"
    if was_answered(study, records):
        return warning(what, f"{CAN_CONTINUE}: {problems}", remedy)
    return failed(what, problems, remedy)


STYLES = {"ok": "green", "warning": "yellow", "failed": "red", "skipped": "dim"}


def check_site(site_file: Path, study_file: Path | None, console: Console) -> bool:
    """Show each finding as it is made; return whether nothing failed."""
    is_app = study_file is None and is_for_app(site_file)
    site = load_app_site(site_file) if is_app else load_site(site_file)
    if isinstance(site, Site):
        allow_only_these(site.limits)
    study = load_study(study_file) if study_file else None
    num_failed = 0
    for finding in _findings(site, site_file, study, study_file):
        num_failed += finding.outcome is Severity.FAILED
        _show(finding, console)
    verdict = "This site can take part."
    if num_failed:
        things = "1 thing keeps" if num_failed == 1 else f"{num_failed} things keep"
        verdict = f"{things} this site from taking part."
    console.print()
    console.print(Text(verdict, style="bold"))
    if study is None and not is_app:
        console.print("Name the study to check the data too: --study STUDY.toml")
    return num_failed == 0


def _findings(
    site: AppSite, site_file: Path, study: Study | None, study_file: Path | None
) -> Iterator[Finding]:
    yield check_site_file(site, site_file)
    yield from check_weaker(site)
    if isinstance(site, Site):
        yield from check_proposals(site_file, study_file)
    yield from check_keys(site)
    if isinstance(site, Site):
        yield from _findings_of_site(site, site_file, study, study_file)
    yield from check_network(site)


def _findings_of_site(
    site: Site, site_file: Path, study: Study | None, study_file: Path | None
) -> Iterator[Finding]:
    yield from site.data.check()
    yield (state := check_state(site))
    yield check_compute(site)
    if state.outcome is Severity.FAILED:
        yield skipped("budgets", "not until the state is fixed")
        yield from _findings_of_study(site, study, None)
    else:
        with closing(Records.existing(site)) as records:
            yield from check_budgets(site, records)
            yield from _findings_of_study(site, study, records)
            if study is not None:
                files = f"{quote(str(site_file))} --study {quote(str(study_file))}"
                yield check_approval(site, study, f"erosion review {files}", records)
                yield check_run(site, study, records)
    yield from check_sealed(site, study)


def _findings_of_study(
    site: Site, study: Study | None, records: Records | None
) -> Iterator[Finding]:
    if study is None:
        return
    if problem := problem_with_heads(study):
        yield failed("study", *problem)
    part = part_asked(site, study)
    yield from check_model(site, part)
    yield from check_study_here(site, part, records)


def _show(finding: Finding, console: Console) -> None:
    line = Table.grid(padding=(0, 2, 0, 0), expand=False)
    line.add_column(width=8, no_wrap=True)
    line.add_column(width=16, no_wrap=True)
    line.add_column(overflow="fold")
    text = Text(shown(finding.text))
    if finding.remedy:
        text.append(f"\n→ {shown(finding.remedy)}", style="bold")
    outcome = Text(finding.outcome, style=STYLES[finding.outcome])
    line.add_row(outcome, Text(finding.what), text)
    console.print(line)
