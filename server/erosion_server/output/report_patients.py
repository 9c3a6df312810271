"""The report's section on patients: their flow and Table 1, as hospitals describe themselves."""

from collections.abc import Mapping
from typing import Any

from erosion_common.protocol.messages import ColumnSummary, Summary, count_range
from erosion_common.support.text import significant
from erosion_common.tasks.inputs import TabularTask
from erosion_server.output.pages import Cell, Row
from erosion_server.output.run_data import RunData, to_tens
from erosion_server.output.words import missing_share, unreadable

MOST_COLUMNS_SHOWN = 60  # of Table 1; the description has all
MOST_FLOWS = 40  # hospitals in the flow of patients
MOST_CATEGORIES = 10  # of a column in Table 1


def patient_values(run: RunData) -> dict[str, Any]:
    """Return the flow of patients and Table 1, as hospitals describe themselves."""
    result, user, task = run.result, run.result.user, run.study.task
    samples = run.last_samples
    missing = {each.hospital: each for each in result.absent}
    unlike = {misfit.hospital for misfit in result.data_check.misfits}
    flow: list[Row] = []
    everyone = [*dict.fromkeys([*run.study.user_first, *result.validation])]
    for name in everyone[:MOST_FLOWS]:
        described = result.patients.get(name)
        remarks = ["wants the model"] if name == user else []
        if (away := missing.get(name)) is not None:
            remarks.append(away.reason if away.everywhere else "missing in some rounds")
        remarks += ["look at its columns"] if name in unlike else []
        counts: list[str | Cell] = [""] * 5
        if described is not None:
            remarks += [lost] if (lost := unreadable(described)) else []
            counts = [
                _about_count(each, described)
                for each in (
                    described.num_recorded,
                    described.num_incomplete,
                    described.num_repeated,
                    described.num_samples,
                    described.num_patients,
                )
            ]
        elif name in samples:
            stated = samples[name].described_samples or samples[name].num_samples
            counts[-2 if run.study.privacy is None else -1] = str(stated)
        elsewhere = result.validation.get(name)
        tested = "none"
        if name == user:
            tested = f"about {to_tens(result.num_patients)}"
        elif elsewhere is not None and elsewhere.metrics is not None:
            tested = f"about {elsewhere.metrics.num_patients}"
        flow.append((run.cell(name), *counts, tested, "; ".join(remarks)))
    notes = []
    if isinstance(task, TabularTask):
        notes.append(
            "No patient was left out for a value outside the study's ranges: a hospital with one"
            " takes no part before it is corrected."
        )
    if (more := len(everyone) - MOST_FLOWS) > 0:
        notes.append(f"And {more} more hospitals: see contributions.csv and result.json.")
    if result.cross_fitting:
        notes.append(
            f"Every patient of {run.shown(user)} was trained on, and tested without its fold."
        )
    described_by = [name for name in run.study.user_first if name in result.patients]
    summaries = {name: result.patients[name] for name in described_by}
    every = (column for each in summaries.values() for column in each.columns)
    columns = [*dict.fromkeys(column.name for column in every)]
    table1 = [_column_row(name, run.units, summaries) for name in columns[:MOST_COLUMNS_SHOWN]]
    if summaries and (more := len(run.study.hospitals) - len(summaries)) > 0:
        notes.append(
            f"Table 1 leaves out {more} hospitals, which counted least or described no columns."
        )
    if (more := len(columns) - MOST_COLUMNS_SHOWN) > 0:
        notes.append(f"Table 1 leaves out {more} columns; `erosion describe` shows all.")
    return {
        "flow": flow,
        "flow_notes": notes,
        "table1": [row for of_column in table1 for row in of_column],
        "table1_headings": ("Column", *map(run.shown, summaries)),
        "patients": result.patients,
    }


def _column_row(name: str, units: Mapping[str, str], summaries: Mapping[str, Summary]) -> list[Row]:
    of = {
        hospital: next((column for column in each.columns if column.name == name), None)
        for hospital, each in summaries.items()
    }
    categories = [*dict.fromkeys(c for column in of.values() if column for c in column.shares)]
    label = f"{name}, {unit}" if (unit := units.get(name, "")) else name
    rows: list[Row] = [
        (
            f"{name}: {category}",
            *(_share_of(of[hospital], category, summaries[hospital]) for hospital in of),
        )
        for category in categories[:MOST_CATEGORIES]
    ]
    if (more := len(categories) - MOST_CATEGORIES) > 0:
        rows.append((f"{name}: {more} more", *("…" for _ in of)))
    if not categories:
        rows = [(label, *(_mean_of(of[hospital], summaries[hospital]) for hospital in of))]
    if any(column is not None and column.missing for column in of.values()):
        rows.append((f"{name}: not known", *map(_missing_of, of.values())))
    return rows


def _mean_of(column: ColumnSummary | None, of: Summary) -> Cell:
    if column is None or column.mean is None:
        return Cell("–")
    deviation = f" ({significant(column.deviation)})" if column.deviation else ""
    off = column.off_by(of.min_cell)
    return Cell(significant(column.mean) + deviation, f"±{significant(off, 2)}" if off else "")


def _share_of(column: ColumnSummary | None, category: str, of: Summary) -> Cell:
    if column is None or category not in column.shares or not column.count:
        return Cell("–")
    told, (low, high) = column.shares[category], column.share_range(category, of.min_cell)
    share = f"{100 * told / column.count:.0f} %" if told else "few or none"
    return Cell(share, f"{100 * low:.0f}–{100 * high:.0f} %")


def _missing_of(column: ColumnSummary | None) -> str:
    return "–" if column is None else missing_share(column).replace("%", " %")


def _about_count(told: int, of: Summary) -> Cell:
    low, high = count_range(told, of.min_cell)
    return Cell(f"about {told}" if told else "few or none", f"{low:.0f}–{high:.0f}")
