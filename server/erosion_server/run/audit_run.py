"""`erosion audit`: compares logs with their hashes, and finds who spoiled a sealed sum."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from erosion_common.errors import RunError, SiteError
from erosion_common.formats.sent_log import entries_since, hash_of, held_against, read_witness
from erosion_server.run.run_folder import RunFolder

if TYPE_CHECKING:
    from erosion_common.sealed.audit import Examined
    from erosion_common.sealed.records import Evidence


def audit_run(run: Path, openings: Sequence[Path]) -> bool:
    """Show what is known and missing; True if no opening is off. Raises RunError."""
    from erosion_common.sealed.audit import examine, read_disclosure
    from erosion_common.sealed.records import RecordFiles, arms_in

    folder = RunFolder(run).sealed
    found = [kept for arm in arms_in(folder) if (kept := RecordFiles(folder, arm).evidence())]
    if not found:
        raise RunError(
            f"There is nothing to audit in {run}: no sealed arm of it was stopped because its sum"
            " did not fit."
        )
    ((evidence, own),) = found  # a study has one sealed arm
    shown = [examine(evidence, own.numpy(), read_disclosure(path, RunError)) for path in openings]
    for line in _lines(evidence, shown):
        print(line)
    return all(finding.is_honest for finding in shown)


def _lines(evidence: "Evidence", shown: "Sequence[Examined]") -> list[str]:
    context = evidence.context
    lines = [
        f"Round {context.round} of {context.arm}: the sum is {evidence.apart:.4g} from the user's"
        f" update; the claimed distances allow {evidence.at_most:.4g}."
    ]
    for finding in shown:
        said = f"{finding.hospital}: claimed the distance {finding.claimed:.4g}"
        if finding.shown is None:
            lines.append(f"{said}; {finding.reason}.")
        elif finding.is_honest:
            lines.append(f"{said}, and that is what it summed.")
        else:
            lines.append(f"{said}, and summed an update at {finding.shown:.4g}.")
    missing = sorted(set(evidence.delivered) - {finding.hospital for finding in shown})
    if missing:
        lines.append(
            f"Not opened yet: {', '.join(missing)}. A person there hands over opening.safetensors,"
            " from the run's folder in NAME/sealed of the site's state, which keeps those of its"
            " last four sealed runs. It shows this one update."
        )
    if liars := [finding.hospital for finding in shown if not finding.is_honest]:
        lines.append(
            f"What {' and '.join(liars)} sent is not what was said of it. A fault or a lie: ask"
            " there. `erosion enroll revoke NAME` keeps a hospital out."
        )
    return lines


def audit_log(run: Path, hospital: str, log: Path) -> bool:
    """Show whether a hospital's log has the hashes that the coordinator received."""
    folder = RunFolder(run)
    kept = read_witness(folder.witness, hospital)
    heads = {noted.head for noted in kept}
    witnessed = len(heads)
    if not witnessed:
        print(f"{hospital}: the coordinator has no hash of its log in this run.")
        return False
    try:
        found = held_against(log, kept)
    except SiteError as problem:
        print(f"{hospital}: {problem}")
        return False
    begins = f"its log, which begins with line {found.first}"
    if not found.num_witnessed:
        print(
            f"{hospital}: none of the {witnessed} hashes is among the lines of {begins}: it was"
            " rewritten, or is of another time."
        )
    elif found.num_witnessed < witnessed:
        print(
            f"{hospital}: {found.num_witnessed} of {witnessed} hashes are among the lines of"
            f" {begins}; older ones are not there (log.keep_days)."
        )
    else:
        print(f"{hospital}: all {witnessed} hashes are in its log of {found.num_lines} lines.")
    ours = (each for each in entries_since(log, 0) if f"{each.run}.".startswith(f"{folder.run}."))
    if number := sum(hash_of(each.text) not in heads for each in ours):
        print(
            f"{hospital}: of {number} lines of this run in its log there is no hash in"
            f" {folder.witness}: these replies did not arrive, or that file lost lines."
        )
    return bool(found.num_witnessed)
