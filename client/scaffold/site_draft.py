"""`erosion site new`: a site file that maps a hospital's columns, as far as that can be told."""

from collections.abc import Sequence
from pathlib import Path

from erosion.client.scaffold.column_match import Match
from erosion.client.scaffold.column_profile import Profile
from erosion.client.scaffold.study_draft import _escaped

CERTAIN = 0.9  # confidence from which a proposal is written as it is


def site_draft(
    name: str,
    data: Path,
    matches: Sequence[Match],
    profiles: Sequence[Profile],
    *,
    address: str,
    accept: float = CERTAIN,
) -> str:
    """The file's text. Proposals below `accept` are comments, for a person to decide."""
    lines = [
        f"# The site of {name}, a first draft made from {data.name}.",
        "# Lines that begin with `# ?` are proposals: remove the mark where they are right.",
        "# `erosion check` shows what is still open; `erosion schema site` lists every key.",
        "",
        f'name = "{name}"',
        "",
        "[data]",
        f'path = "{_escaped(str(data))}"',
        *_patient(profiles),
        *_absent(matches),
        *_columns(matches, accept),
        *_units(matches),
        *_values(matches, accept),
        "",
        "[coordinator]",
        f'address = "{address}"',
        '# root_certificate = "ca.crt"   # both come in the site kit',
        '# private_key = "node.key"',
    ]
    return "\n".join(lines) + "\n"


def _patient(profiles: Sequence[Profile]) -> list[str]:
    keys = [profile.name for profile in profiles if profile.kind == "identifier"]
    return [
        f'# ? patient = "{_escaped(key)}"  # if several rows can be of one patient'
        for key in keys[:1]
    ]


def _absent(matches: Sequence[Match]) -> list[str]:
    missing = [match.column for match in matches if match.local is None]
    if not missing:
        return []
    listed = ", ".join(f'"{_escaped(name)}"' for name in missing)
    return [f"# ? absent = [{listed}]  # no column seems to hold these; absent: not recorded here"]


def _columns(matches: Sequence[Match], accept: float) -> list[str]:
    renamed = [m for m in matches if m.local is not None and m.local != m.column]
    if not renamed:
        return []
    lines = ["", '[data.columns]  # "in the study" = "in the data"']
    for match in renamed:
        line = f'"{_escaped(match.column)}" = "{_escaped(str(match.local))}"'
        lines.append(f"{_mark(match, accept)}{line}  # confidence {match.confidence:.2f}")
    return lines


def _units(matches: Sequence[Match]) -> list[str]:
    """Always for a person to confirm: the range alone speaks for a factor."""
    converted = [match for match in matches if match.factor is not None]
    if not converted:
        return []
    lines = ["", "[data.units]  # the study's unit = the data's x factor"]
    lines += [
        f'# ? "{_escaped(m.column)}" = {m.factor:.6g}  # {m.local} seems to be in another unit'
        for m in converted
    ]
    return lines


def _values(matches: Sequence[Match], accept: float) -> list[str]:
    lines = []
    for match in matches:
        if not match.values and not match.unknown:
            continue
        lines += ["", f'[data.values."{_escaped(match.column)}"]  # "in the data" = "in the study"']
        lines += [
            f'{_mark(match, accept)}"{_escaped(text)}" = "{_escaped(meant)}"'
            for text, meant in match.values.items()
        ]
        lines += [f'# ? "{_escaped(text)}" = ""  # what does it mean?' for text in match.unknown]
    return lines


def _mark(match: Match, accept: float) -> str:
    return "" if match.confidence >= accept else "# ? "
