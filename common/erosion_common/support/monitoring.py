"""What a program exports for monitoring: the figures in its status, in Prometheus' text format.

They are counts, seconds and bytes of the program, never a figure of a patient. Labels are names of
this side's own files, or words from a fixed list: what another side sends cannot add a series.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from erosion_common.errors import RunError
from erosion_common.support.status import Level, Seen, health, live_statuses
from erosion_common.support.text import printable

PREFIX = "erosion_"
TOTAL, AT, SECONDS, BYTES = "_total", "_timestamp_seconds", "_seconds", "_bytes"
METRICS = {  # by name without PREFIX; a name that ends in TOTAL is a counter, any other a gauge
    "build_info": "1, with the version of the program",
    "health": "As erosion status exits: 0 OK, 1 WARNING, 2 CRITICAL",
    "phase": "1 for what the study is at",
    "round": "Last finished round of the arm under way",
    "rounds_planned": "Rounds of the arm under way",
    "rounds_total": "Rounds that ended since the program started",
    "rounds_seconds_total": "Seconds that those rounds took",
    "last_round_timestamp_seconds": "When the last round ended",
    "hospitals": "Hospitals of the study",
    "hospital_connected": "Whether the hospital is connected",
    "hospital_waited_for": "Whether the study stands still, or a round waits, for the hospital",
    "answers_total": "Answers to requests, by outcome",
    "rejections_total": "Answers that could not be used, by reason",
    "denials_total": "Connections that were not let in, by reason",
    "received_bytes_total": "Bytes of messages received",
    "sent_bytes_total": "Bytes of messages sent",
    "outputs_dropped": "Outputs that failed and get no more events",
    "queue_studies": "Study files in the queue's folder, by what became of them",
    "connected": "Whether the site is connected to its coordinator",
    "last_sent_timestamp_seconds": "When the site last answered",
    "budget_used": "What is used up of a budget of the site file",
    "budget_limit": "The budget in the site file",
    "certificate_expiry_timestamp_seconds": "When this side's certificate ends",
}
PHASES = ("starting", "waiting for hospitals", "training", "between arms", "closing", "serving",
          "finished", "failed")  # fmt: skip
MOST_LABEL = 120  # characters
MOST_HOSPITALS = 1000  # with series of their own


@dataclass(frozen=True, slots=True)
class Sample:
    """One figure of a status."""

    name: str  # in METRICS
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


def figures_of(values: Mapping[str, Any], level: Level) -> Iterator[Sample]:
    """Yield the figures in a status file's values. Raises TypeError, ValueError, AttributeError."""
    if "site" in values:
        labels = {"site": str(values["site"]), "coordinator": str(values.get("coordinator"))}
        found = _of_site(values)
    elif "queue" in values:
        labels, found = {"queue": str(values["queue"])}, _of_queue(values)
    else:
        labels = {"study": str(values.get("study")), "run": str(values.get("run"))}
        found = _of_run(values)
    for figure in [Sample("health", level), *found, *_of_both(values)]:
        yield Sample(figure.name, figure.value, {**labels, **figure.labels})


def _of_both(values: Mapping[str, Any]) -> Iterator[Sample]:
    yield from _counts("answers_total", "outcome", values.get("answers"))
    yield from _counts("denials_total", "reason", values.get("denials"))
    for name in ("received_bytes", "sent_bytes"):
        if name in values:
            yield Sample(name + TOTAL, values[name])
    yield from _time("certificate_expiry", values.get("certificate_expires"))


def _of_run(values: Mapping[str, Any]) -> Iterator[Sample]:
    phase = str(values.get("phase")).partition(",")[0]
    yield from (Sample("phase", phase == each, {"phase": each}) for each in PHASES)
    if values.get("arm"):
        yield Sample("round", values.get("round", 0))
        yield Sample("rounds_planned", values.get("rounds", 0))
    yield from _counts("rounds_total", "outcome", values.get("rounds_ended"))
    yield from _counts("rejections_total", "reason", values.get("rejections"))
    yield Sample("rounds_seconds_total", values.get("rounds_seconds", 0.0))
    yield from _time("last_round", values.get("last_round", {}).get("ended"))
    hospitals = values.get("hospitals", ())
    yield Sample("hospitals", len(hospitals))
    if values.get("ended"):
        return
    waited_for = {*values.get("missing", ()), *values.get("waiting_for", ())}
    waited_for |= {str(name).partition(" ")[0] for name in values.get("stands_still_for", ())}
    for name in hospitals[:MOST_HOSPITALS]:
        yield Sample("hospital_connected", name in values.get("connected", ()), {"hospital": name})
        yield Sample("hospital_waited_for", name in waited_for, {"hospital": name})
    yield Sample("outputs_dropped", len(values.get("outputs_dropped", ())))


def _of_queue(values: Mapping[str, Any]) -> Iterator[Sample]:
    yield Sample("queue_studies", len(values.get("studies", ())), {"state": "waiting"})
    yield from _counts("queue_studies", "state", values.get("put_away"))


def _of_site(values: Mapping[str, Any]) -> Iterator[Sample]:
    yield Sample("connected", bool(values.get("connected")))
    yield from _time("last_sent", values.get("last_sent"))
    for budget, by, used, limit in values.get("account", ()):
        labels = {"budget": str(budget), **({"by": str(by)} if by else {})}
        yield Sample("budget_used", used, labels)
        if limit is not None:
            yield Sample("budget_limit", limit, labels)


def _counts(name: str, label: str, counts: Mapping[str, float] | None) -> Iterator[Sample]:
    for key, count in (counts or {}).items():
        yield Sample(name, count, {label: key})


def _time(name: str, written: str | None) -> Iterator[Sample]:
    if written:
        yield Sample(name + AT, datetime.fromisoformat(written).timestamp())


def figures_of_this_program() -> list[Sample]:
    """Return the figures of every status that this program keeps, and of its build."""
    from erosion_common.support.software import software_version

    found = [Sample("build_info", 1, {"version": software_version()})]
    for path, values in live_statuses():
        seen = Seen(values, 0.0, is_held=True)
        found += figures_of(values, health(path, seen)[0])
    return found


def exposition(figures: Iterable[Sample]) -> str:
    """Return the figures in Prometheus' text format, version 0.0.4; of equal ones the last."""
    by_name: dict[str, dict[str, float]] = {}
    for figure in figures:
        by_name.setdefault(figure.name, {})[_labels(figure.labels)] = float(figure.value)
    lines = []
    for name, series in by_name.items():
        kind = "counter" if name.endswith(TOTAL) else "gauge"
        lines += [f"# HELP {PREFIX}{name} {METRICS[name]}.", f"# TYPE {PREFIX}{name} {kind}"]
        lines += [f"{PREFIX}{name}{labels} {_number(value)}" for labels, value in series.items()]
    return "".join(f"{line}\n" for line in lines)


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    parts = []
    for name, text in labels.items():
        quoted = printable(text, at_most=MOST_LABEL).replace("\\", "\\\\").replace('"', '\\"')
        parts.append(f'{name}="{quoted}"')
    return f"{{{','.join(parts)}}}"


def _number(value: float) -> str:
    """As Prometheus reads it: +Inf, NaN, and no digit lost."""
    if value == float("inf"):
        return "+Inf"
    return str(int(value)) if value == value // 1 else repr(value)


def performance(seen: Seen, level: Level) -> dict[str, tuple[float, str]]:
    """Return a monitoring plugin's figures, value and unit by label. Raises RunError."""
    told: dict[str, tuple[float, str]] = {}
    try:
        for figure in figures_of(seen.values, level):
            own = {k: v for k, v in figure.labels.items() if k not in _WHOSE}
            if "hospital" in own or figure.name in ("health", "phase"):
                continue
            name, value = figure.name, float(figure.value)
            if name.endswith(AT):
                left = value - time.time()
                value = left if "expiry" in name else max(0.0, -left)  # below 0: expired
                name = name.removesuffix(AT) + SECONDS
            unit = "s" if SECONDS in name else "B" if BYTES in name else ""
            unit = unit or ("c" if name.endswith(TOTAL) else "")
            label = "_".join([name.removesuffix(TOTAL), *own.values()])
            told[label] = value, unit
    except (AttributeError, OverflowError, TypeError, ValueError) as problem:
        raise RunError(f"The status was not written by this program: {problem}.") from None
    return told


_WHOSE = ("site", "coordinator", "queue", "study", "run")


def performance_line(told: Mapping[str, tuple[float, str]]) -> str:
    """Return it as monitoring systems read it: `| 'rounds_done'=3c ...`; U where it is infinite."""
    parts = []
    for label, (value, unit) in told.items():
        plain = "".join(c for c in printable(label, at_most=MOST_LABEL) if c not in "='| ")
        number = "U" if value == float("inf") else f"{_number(round(value, 3))}{unit}"
        parts.append(f"'{plain}'={number}")
    return f"| {' '.join(parts)}"
