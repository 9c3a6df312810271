"""`erosion site new`: a site file that maps a hospital's columns, as far as possible."""

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np

from erosion_client.dataset.column_values import BEYOND_A_LIMIT, OR_BELOW, toml_key
from erosion_client.scaffold.column_match import Match
from erosion_client.scaffold.column_profile import NUMBER, Profile
from erosion_client.scaffold.column_roles import PLAINLY_NONE, likely_key, repeats, why_not
from erosion_client.scaffold.vocabulary import is_person, unit_text

ACCEPTED = 0.9  # confidence from which a proposal is written as a setting
MOST_ODD = 10  # non-numeric values of a number, listed one by one
SHOWN = 4  # limits in a comment
_JOINED = (
    "",
    "# The outcome stands on other rows than the features; joined, a patient has one row.",
    "# ? [data.rows]",
    '# ? take = "first"  # or "last", "mean", "max", "min"; or name the event (event_column,',
    "# event), so that nothing is read that came after the outcome.",
)
OPEN_NUMBER = "A NUMBER"  # not a format
OPEN = "WHAT IT MEANS"  # not a value of a study, so nothing matches it


def site_draft(
    name: str,
    data: Path,
    matches: Sequence[Match],
    profiles: Sequence[Profile],
    notes: Sequence[str],
    *,
    address: str,
    outcome: Collection[str],
    written: Mapping[str, str],
    joined_by: str | None,
    footer: int,
) -> str:
    """Return the file's text. Proposals below ACCEPTED are comments, for a person to decide.

    `notes` are from reading the table; `outcome` names the columns of the study that a hospital
    must have. `written`: format keys of the file. `joined_by`: the patient key, where the outcome
    is on other rows than the features.
    """
    lines = [
        f"# The site of {name}, a first draft made from {data.name}.",
        "# Lines that begin with `# ?` are proposals: remove the mark where they are right.",
        "# `erosion check` shows what is still open; `erosion schema site` lists every key.",
        "",
        f'name = "{name}"',
        "",
        "[data]",
        f"path = {quoted(str(data))}",
        *(f"{key} = {quoted(value)}" for key, value in written.items()),
        *(f"# {note}" for note in notes),
        *([f"# ? footer_lines = {footer}"] if footer else []),
        *(
            f'# ? thousands = "{mark}"  # 198{mark}000 is a hundred and ninety-eight thousand'
            for mark in dict.fromkeys(m.thousands for m in matches if m.thousands)
        ),
        *_patient(profiles, joined_by),
        *_absent(matches, profiles, outcome),
        *([] if joined_by is None else _JOINED),
        *_columns(matches),
        *_units(matches, profiles),
        *_limits(matches),
        *_values(matches, profiles),
        *_derived(matches),
        "",
        "[coordinator]",
        f'address = "{address}"',
        '# root_certificate = "ca.crt"  # these three come in the site kit, which also names the',
        '# certificate = "node.crt"     # coordinator',
        '# private_key = "node.key"',
    ]
    return "\n".join(lines) + "\n"


def _patient(profiles: Sequence[Profile], joined_by: str | None) -> list[str]:
    """Write a key that repeats uncommented: wrongly grouped rows only cost statistical power."""
    key = likely_key(profiles)
    name = joined_by or (key.name if key else None)
    if name is None:
        return []
    line = f"patient = {quoted(name)}"
    if joined_by or repeats(key):
        return [f"{line}  # rows with the same value are of one patient"]
    return [f"# ? {line}  # if several rows can be of one patient"]


def _absent(
    matches: Sequence[Match], profiles: Sequence[Profile], outcome: Collection[str]
) -> list[str]:
    missing = [m.column for m in matches if m.local is None and m.between is None]
    lines = [
        f"# No column seems to hold {quoted(name)}, the outcome, without which the hospital"
        " cannot\n# take part: write under [data.columns] what it is called here."
        for name in missing
        if name in outcome
    ]
    if features := [quoted(name) for name in missing if name not in outcome]:
        listed = ", ".join(features)
        what = "no column seems to hold these; absent: not recorded here"
        lines.append(f"# ? absent = [{listed}]  # {what}")
    if missing:  # one of these may hold it
        lines += [
            f"# {escaped(p.name)}: not read, {escaped(why)}"
            for p in profiles
            if p.kind == "text"
            and not is_person(p.name)
            and (why := why_not(p)) not in PLAINLY_NONE
        ]
    return lines


def _columns(matches: Sequence[Match]) -> list[str]:
    renamed = [m for m in matches if m.local is not None and m.local != m.column]
    if not renamed:
        return []
    lines = ["", '[data.columns]  # "in the study" = "in the data"']
    for match in renamed:
        line = f"{quoted(match.column)} = {quoted(str(match.local))}"
        mark = "" if match.confidence >= ACCEPTED else "# ? "
        lines.append(f"{mark}{line}  # confidence {match.confidence:.2f}")
    return lines


def _units(matches: Sequence[Match], profiles: Sequence[Profile]) -> list[str]:
    """Write units as proposals: only the values, or a header, suggest a unit."""
    converted = [match for match in matches if match.unit is not None]
    read = [match.local for match in matches]
    mixed = [
        f"# {escaped(p.name)}: {p.mixed}; if they are, export the column in one unit"
        for p in profiles
        if p.mixed is not None and p.name in read
    ]
    if not converted:
        return mixed
    lines = [*mixed, "", "[data.units]  # the study's unit = the data's x factor (+ offset)"]
    lines += [
        f"# ? {quoted(m.column)} = {unit_text(m.unit)}"
        f"  # {escaped(str(m.local))} seems to be in another unit"
        for m in converted
        if m.unit is not None
    ]
    return lines


def _derived(matches: Sequence[Match]) -> list[str]:
    lines: list[str] = []
    for match in matches:
        if (found := match.between) is not None:
            which = ""
            if len(match.forms) > 1:
                which = "  # keep one: the dates do not show which, as where all days are up to 12"
            elif "%y" in match.forms[0]:
                which = "  # years of two digits: people over a hundred look like children"
            lines += [
                "",
                f"# ? [data.derive.{quoted(match.column)}]  # made of two dates",
                f'# ? kind = "{found.kind}"',
                f"# ? start = {quoted(found.start)}",
                f"# ? end = {quoted(str(found.end))}  # or one date for everybody",
                f'# ? date_format = "{" OR ".join(match.forms)}"{which}',
            ]
    return lines


def _values(matches: Sequence[Match], profiles: Sequence[Profile]) -> list[str]:
    lines = []
    counts = {profile.name: profile.counts for profile in profiles}
    for match in matches:
        if not (match.values or match.others or match.unknown or match.unsaid or match.odd):
            continue
        lines += ["", f'[data.values.{quoted(match.column)}]  # "in the data" = "in the study"']
        lines += [
            f"{'' if is_written(match, text) else '# ? '}{quoted(text)} = {quoted(meant)}"
            for text, meant in match.values.items()
        ]
        lines += [f"# or: {_pairs(other)}" for other in match.others]
        for text in match.unsaid:
            times = counts[str(match.local)].get(text)  # that may as well be measured
            often = f" {times} rows" if times else ""
            below = ", or below a limit" if text.lower() in OR_BELOW else ""
            lines.append(f'# ? {quoted(text)} = ""  # not known{below}?{often}')
        lines += map(_odd_line, match.odd[:MOST_ODD])
        if len(match.odd) > MOST_ODD:
            lines.append(f"# and {len(match.odd) - MOST_ODD} more that are no numbers")
        lines += [
            f'# ? {quoted(text)} = "{OPEN}"  # one of the study\'s, or "" if it is missing'
            for text in match.unknown
        ]
    return lines


def _odd_line(text: str) -> str:
    """Return the proposal for a non-numeric value of a number: the number in it, or missing."""
    if (found := NUMBER.match(text)) is not None:
        rest = text[found.end() :].strip()
        if rest == "-":
            return f"# ? {quoted(text)} = {quoted(f'-{found[0]}')}  # the sign behind it?"
        return f"# ? {quoted(text)} = {quoted(found[0])}  # without {escaped(rest)!r}?"
    if text.lower() in BEYOND_A_LIMIT:
        return f'# ? {quoted(text)} = "{OPEN_NUMBER}"  # beyond a limit: half of a lower one?'
    return f'# ? {quoted(text)} = "{OPEN_NUMBER}"  # or "" if it is missing'


def _limits(matches: Sequence[Match]) -> list[str]:
    """Write values below a limit as proposals, which only the hospitals can agree on."""
    found = [match for match in matches if match.limits]
    if not found:
        return []
    what = '"half": half the limit of one below it; "limit": the limit'
    lines = ["", f"[data.limits]  # values beyond a limit. {what}"]
    for match in found:
        some = ", ".join(map(escaped, match.limits[:SHOWN]))
        lines.append(f'# ? {quoted(match.column)} = "half"  # no numbers: {some}')
    return lines


def _pairs(values: Mapping[str, str]) -> str:
    return ", ".join(f"{quoted(text)} = {quoted(meant)}" for text, meant in values.items())


def is_written(match: Match, text: str) -> bool:
    """Return whether a spelling is written uncommented, not as a proposal."""
    return match.confidence >= ACCEPTED and text not in match.asked


FEWEST = 10  # patients; a category of fewer is pointed out before the file is passed on


def quoted(text: str) -> str:
    """Return the text as a TOML string, on one line."""
    return f'"{escaped(text)}"'


def missing_line(text: str, column: str) -> str:
    """Return the site file's line for a text that means a missing value."""
    return f'{quoted(text)} = "" under [data.values.{toml_key(column)}]'


def escaped(text: str) -> str:
    """Return the text as TOML has it between quotation marks, on one line."""
    return json.dumps(text, ensure_ascii=False)[1:-1].replace("\x7f", "\\u007f")


def short(value: float) -> str:
    """Return the number with two significant digits."""
    return repr(float(np.format_float_positional(float(f"{value:.2g}"), trim="0")))
