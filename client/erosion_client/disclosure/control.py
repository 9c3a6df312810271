"""A site's small-cell rule: how counts and a column's figures are rounded before they leave a site.

A count below the smallest cell leaves as 0, any other as a multiple of the cell. A mean leaves as a
multiple of the deviation times cell / n: the shift that a cell of patients, one deviation off,
would cause. A deviation leaves as a power of two with exponents that far apart. Whether a figure
goes up or down to its grid is drawn from the site's secret, with the odds that keep it right on
average. Every step is a power of two, so that the grids of different n are nested.

First, values beyond a fence are moved to it, so that no patient's own extreme moves a figure: the
fence lies 1.5 times the distance of the `reach`-th smallest and largest values beyond them, where
`reach` is a cell of values or, in small hospitals, a quarter. A quantile is the mean of the cell of
values around it, and is left out where fewer than a cell lie on either side.
"""

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from math import floor, log2, sqrt

import numpy as np
from numpy.typing import NDArray

from erosion_client.dataset.text_table import mixed
from erosion_client.disclosure.patient_sets import (
    Hashes,
    hashes_of_patients,
    keys_of,
    patient_hashes,
    row_hashes,
    set_of,
    settle,
    sketch_of,
    text_hashes,
)
from erosion_client.records.records import Records
from erosion_client.site_file import Site
from erosion_common.errors import Refusal
from erosion_common.protocol.messages import QUANTILES, FeatureSums, relative_step
from erosion_common.settings.base import Settings
from erosion_common.study.sections import Fold, fewest_held_out, folds_key
from erosion_common.tasks.inputs import TabularTask
from erosion_common.tasks.preparations import prepared, term_values
from erosion_common.tasks.task import Targets


def draw(secret: bytes, *words: str | bytes) -> float:
    """Return a number in [0, 1) that depends on the secret and the words alone."""
    message = b"".join(
        len(part).to_bytes(8, "big") + part
        for part in (w.encode() if isinstance(w, str) else w for w in words)
    )
    digest = hmac.digest(secret, message, hashlib.sha256)
    return (int.from_bytes(digest[:8], "big") >> 11) / 2**53


def rounded_count(count: int, cell: int, at: float) -> int:
    """Return 0 for fewer than a cell of patients, else a multiple of it. `at`: a draw in [0, 1)."""
    return cell * floor(count / cell + at) if count >= cell else 0


def rounded_parts(parts: Mapping[str, int], cell: int, at: float) -> dict[str, int]:
    """Return each part as `rounded_count` has it, with the sum of all parts of a cell preserved."""
    total, told = 0, {}
    for name, count in parts.items():
        before = floor(total / cell + at)
        total += count if count >= cell else 0
        told[name] = cell * (floor(total / cell + at) - before)
    return told


def rounded(value: float, step: float, at: float) -> float:
    """Return the multiple of `step` below or above; the value itself where there is no step."""
    return step * floor(value / step + at) if step > 0 else value


def rounded_deviation(deviation: float, count: int, cell: int, at: float) -> float:
    """Return a power of two; 0 where there is no deviation."""
    if deviation <= 0:
        return 0.0
    return float(2.0 ** rounded(log2(deviation), relative_step(count, cell), at))


FENCE = 1.5
CONSTANT = 1e-6  # of the mean; a smaller deviation is rounding


class ColumnFigures(Settings):
    """Figures of the patients who have a value."""

    count: int  # a multiple of the cell; 0: too few, and nothing else is disclosed
    mean: float = 0.0
    deviation: float = 0.0  # 0: the same value for all, or for all but a few
    quantiles: tuple[float | None, ...] = ()  # for QUANTILES


def sums_of(figures: ColumnFigures) -> tuple[int, float, float]:
    """Return number, sum and sum of squares of values with these figures."""
    mean, deviation = figures.mean, figures.deviation
    return figures.count, figures.count * mean, figures.count * (deviation**2 + mean**2)


def column_figures(values: NDArray[np.float64], cell: int, secret: bytes, of: str) -> ColumnFigures:
    """Return the figures of values (n,) without missing ones; `of` names the set for the draws."""
    count = rounded_count(len(values), cell, draw(secret, of, "count"))
    if count == 0:
        return ColumnFigures(count=0)
    fenced = _fenced(np.sort(values), cell)
    mean, spread = float(fenced.mean()), sqrt(float(fenced.var()))
    if spread <= CONSTANT * abs(mean):
        spread = 0.0
    deviation = rounded_deviation(spread, count, cell, draw(secret, of, "deviation"))
    step = deviation * relative_step(count, cell)
    quantiles = [
        None if middle is None else rounded(middle, step, draw(secret, of, f"quantile {level}"))
        for level in QUANTILES
        for middle in (around(fenced, level, cell),)
    ]
    return ColumnFigures(
        count=count,
        mean=rounded(mean, step, draw(secret, of, "mean")) if step else mean,
        deviation=deviation,
        quantiles=tuple(quantiles),
    )


def _fenced(ordered: NDArray[np.float64], cell: int) -> NDArray[np.float64]:
    reach = min(cell, max(1, len(ordered) // 4))
    low, high = float(ordered[reach - 1]), float(ordered[-reach])
    width = FENCE * (high - low)
    return np.clip(ordered, low - width, high + width)


def around(ordered: NDArray[np.float64], level: float, cell: int) -> float | None:
    """Return the mean of the cell of values around a quantile; None where it is too far out."""
    if round(len(ordered) * min(level, 1 - level), 6) < cell:
        return None
    start = round(len(ordered) * level - cell / 2)
    return float(ordered[start : start + cell].mean())


Rows = NDArray[np.float64] | NDArray[np.uint8]
Groups = NDArray[np.int64]
COLUMN, PATIENTS, TEST_PART = "column", "patients", "test part"  # kinds of disclosures
_ANY_NUMBER = 2**62
AT_ONCE = 32  # columns that are noted with one flush; another program may wait for them


class DisclosureControl:
    """Rounds what a site discloses, and remembers it. Raises Refusal and SiteError."""

    def __init__(self, site: Site, secret: bytes = b"", records: Records | None = None) -> None:
        """`secret`: the site's, from which roundings are drawn; empty in a simulation."""
        self.cell = site.limits.min_cell
        self._most, self._secret = site.budget.sets, secret
        self._keys, self._local_name = keys_of(secret), site.data.local_name
        records = records or Records.of(site)
        self._table = records.disclosures
        self.transaction = records.transaction
        if secret:
            records.check_secret(secret)

    def numbers(
        self,
        rows: Rows,
        groups: Groups,
        identified: Groups | None = None,
        whole_rows: Hashes | None = None,
    ) -> tuple[int, int, int]:
        """Return the numbers of samples, identified patients, and patients; multiples of the cell.

        `identified`: (n,) as `groups`, by the rows' identifiers alone; None: they have none.
        `whole_rows`: see `check_test_part`. All are noted, and one is sent.
        """
        kinds = self._known_as(PATIENTS, rows, groups, whole_rows)
        patients = kinds[PATIENTS]

        def compute() -> str:
            at = draw(self._secret, "number", self._name_of(patients))
            sets = groups if identified is None else identified, groups
            counts = len(rows), *(len(np.unique(patients)) for patients in sets)
            return " ".join(str(rounded_count(count, self.cell, at)) for count in counts)

        told = self._table.disclose(kinds, PATIENTS, self.cell, _ANY_NUMBER, compute)
        try:
            num_samples, num_identified, num_patients = map(int, told.split(" "))
        except ValueError:
            raise self._table.damaged("the record of all patients") from None
        return num_samples, num_identified, num_patients

    def data_counts(
        self, counts: Mapping[str, int], rows: Rows, groups: Groups, whole_rows: Hashes | None
    ) -> dict[str, int]:
        """Return counts of a site's whole data, which `rows` (n, ...) are what is used of.

        Nearly the same data have the figures of earlier ones. The draw is the same for all data, so
        that no mean over studies of other columns has the counts behind it.
        """
        kinds = self._known_as("data", rows, groups, whole_rows)

        def compute() -> str:
            at = draw(self._secret, "data")
            each = (rounded_count(count, self.cell, at) for count in counts.values())
            return " ".join(map(str, each))

        told = self._table.disclose(kinds, "data", self.cell, _ANY_NUMBER, compute)
        try:
            return dict(zip(counts, map(int, told.split(" ")), strict=True))
        except ValueError:
            raise self._table.damaged("the record of the data's size") from None

    def _known_as(
        self, kind: str, rows: Rows, groups: Groups, whole_rows: Hashes | None
    ) -> dict[str, Hashes]:
        kinds = {kind: patient_hashes(rows, groups, self._keys)}
        if whole_rows is not None:
            keyed = mixed(whole_rows ^ self._keys[0])
            kinds[f"{kind}, whole rows"] = hashes_of_patients(keyed, groups, self._keys)
        return kinds

    def column(
        self,
        name: str,
        values: NDArray[np.float64],
        groups: Groups,
        *,
        term: str = "",
        is_disclosed: bool = True,
    ) -> ColumnFigures:
        """Return the figures of a number column (n,), or a `term` of it, NaN where one is missing.

        With several rows, a patient counts with the mean of its values. Figures that do not leave
        are rounded alike, but from just these patients, and are not remembered.
        """
        of_term = f", {term}" if term else ""
        called, label = name + of_term, self._local_name(name) + of_term  # the same for every study
        known = ~np.isnan(values)
        patients = patient_hashes(values[known], groups[known], self._keys)

        def compute() -> ColumnFigures:
            of = f"{called}/{self._name_of(patients)}"
            _, places = np.unique(groups[known], return_inverse=True)
            means = np.bincount(places, weights=values[known]) / np.bincount(places)
            return column_figures(means, self.cell, self._secret, of)

        if not is_disclosed:
            return compute()
        told = self._table.disclose(
            {COLUMN: patients},
            label,
            self.cell,
            self._most,
            lambda: compute().model_dump_json(),
            called=called,
        )
        try:
            return ColumnFigures.model_validate_json(told)
        except ValueError:
            raise self._table.damaged(f"the record of {name}") from None

    def counts(
        self,
        name: str,
        counts: Mapping[str, int],
        values: NDArray[np.float64],
        groups: Groups,
        texts: Mapping[str, str] | None = None,
    ) -> dict[str, int]:
        """Return `counts` of patients by category of a column (n,), or another property, rounded.

        Each patient counts in at most one of them, and they are rounded together: `rounded_parts`.

        `texts`: the data's values of each category, in the order of the column's codes: they
        identify patients in any order of the study's categories. None: the column is of numbers.
        """
        patients = patient_hashes(values, groups, self._keys)
        column = self._local_name(name)  # the same for every study
        if texts is None:
            kinds = {f"counts: {', '.join(counts)} of {column}": patients}
        else:
            codes = np.where(np.isnan(values), len(texts), values).astype(np.int64)
            rows = mixed(text_hashes([*texts.values(), ""])[codes] ^ self._keys[0])
            by_text = hashes_of_patients(rows, groups, self._keys)
            kinds = {f"counts: categories of {column}": by_text}

        def compute() -> str:
            at = draw(self._secret, name, "counts", self._name_of(patients))
            told = rounded_parts(counts, self.cell, at)
            return json.dumps(told | {text: told[what] for what, text in (texts or {}).items()})

        told = self._table.disclose(kinds, column, self.cell, self._most, compute, called=name)
        try:
            known = {str(what): int(count) for what, count in json.loads(told).items()}
        except (ValueError, TypeError, AttributeError, RecursionError):
            raise self._table.damaged(f"the record of {name}") from None
        called = texts or {}  # a study may name its classes anything
        return {what: known.get(called.get(what, what), known.get(what, 0)) for what in counts}

    def sums(
        self, task: TabularTask, rows: NDArray[np.float64], groups: Groups, *, is_disclosed: bool
    ) -> FeatureSums:
        """Return rounded sums per encoded column over a cell of patients or more; else zeros."""
        sums: list[tuple[int, float, float]] = []
        for at in range(0, len(task.features), AT_ONCE):
            part = slice(at, at + AT_ONCE)
            with self.transaction():
                for feature, values in zip(task.features[part], rows.T[part], strict=True):
                    inner = prepared(feature, values)
                    for term in task.terms(feature):
                        if term.code is not None:  # how many have which category is private
                            sums.append((0, 0.0, 0.0))
                            continue
                        told = self.column(
                            feature.name,
                            term_values(term, inner),
                            groups,
                            term=term.label,
                            is_disclosed=is_disclosed,
                        )
                        sums.append(sums_of(told))
        sums += [(0, 0.0, 0.0)] * len(task.products())
        counts, totals, squares = zip(*sums, strict=True)
        return FeatureSums(count=counts, total=totals, squares=squares)

    def trained_on(
        self,
        name: str,
        rows: Rows,
        targets: Targets,
        groups: Groups,
        whole_rows: Hashes | None,
        *,
        is_noted: bool = True,
        may_leave_out: bool = True,
    ) -> NDArray[np.bool_]:
        """Return which of a study's training rows (n, ...) updates are computed from: (n,).

        `whole_rows`: (n,) hashes of all source data of each row. See `cohorts`. `is_noted`: they
        count as trained on from now on. `may_leave_out`: otherwise all are trained on, or Refusal
        is raised.
        """
        outcomes = row_hashes(targets.reshape(len(targets), -1).astype(np.float64), self._keys)
        values = mixed(row_hashes(rows, self._keys) ^ mixed(outcomes ^ self._keys[2]))
        asked = set_of(values, whole_rows, groups, self._keys)
        with self.transaction():
            earlier = self._table.cohorts()
            kept = settle(asked, earlier, self.cell, self._keys[3])
            if kept is None or not (may_leave_out or kept.all()):
                remedy = "There are too few others to leave out with them."
                if not may_leave_out:
                    remedy = (
                        "Settings are not chosen without them: give the study another seed or name,"
                        " which draws other parts, or the columns, policies, test_share and"
                        " selection.folds of the earlier study."
                    )
                raise self._nearly_before(f"{name} trained on nearly these patients", remedy)
            settled = asked.take(kept)
            if is_noted and not any(settled.is_same_as(other) for other in earlier):
                self._table.add_cohort(settled)
        return kept

    def check_folds(self, name: str, folds: Sequence[Fold], num_patients: int) -> None:
        """Refuse folds of few patients: the difference of runs with and without a fold shows it."""
        if folds and fewest_held_out(folds, num_patients) < self.cell:
            key = folds_key(folds)
            raise Refusal(
                f"{name} leaves out no folds of fewer than {self.cell} patients (limits.min_cell):"
                f" write fewer {key} than {folds[0].of}, or leave them out."
            )

    def check_test_part(
        self,
        name: str,
        rows: Rows,
        targets: Targets,
        groups: Groups,
        whole_rows: Hashes | None = None,
        *,
        is_noted: bool = True,
        remedy: str = "raise evaluation.test_share",
    ) -> None:
        """Refuse to measure models on few patients, or on nearly those of an earlier test part.

        `whole_rows`: (n,) hashes of all source data of each row, which identify the patients in a
        study of other columns, too. `is_noted`: they count as measured on from now on. `remedy`:
        what makes the test part larger.
        """
        if len(np.unique(groups)) < self.cell:
            raise Refusal(
                f"{name} does not measure models on fewer than {self.cell} patients"
                f" (limits.min_cell = {self.cell}): {remedy}, or, with hardly more patients in"
                " all, let the study have another user."
            )
        flat = rows.reshape(len(rows), -1), targets.reshape(len(targets), -1)
        measured = np.column_stack(flat).astype(np.float64)
        kinds = {TEST_PART: patient_hashes(measured, groups, self._keys)}
        if whole_rows is not None:
            told = np.ascontiguousarray(whole_rows)[:, None].view(np.uint8)
            kinds[f"{TEST_PART}, whole rows"] = patient_hashes(told, groups, self._keys)
        if self._table.is_nearly_disclosed(kinds, TEST_PART, self.cell, is_noted=is_noted):
            raise self._nearly_before(
                f"{name} measured models on nearly these test patients",
                "Give the study another seed or name, which draws another test part; where there"
                " are folds or evaluation.split_column, the columns and policies of the earlier"
                " study.",
            )

    def _nearly_before(self, what: str, remedy: str) -> Refusal:
        return Refusal(
            f"{what} before: a few came, went or were corrected since, or another study's columns"
            " or shares leave them out, and the two runs together would show these few"
            f" (limits.min_cell = {self.cell})",
            remedy=remedy,
        )

    def disclosed(self) -> list[str]:
        """Return the disclosed figures about this site's patients, in lines."""
        by_column = self._table.num_disclosed(COLUMN)
        lines = []
        if by_column:
            column = max(by_column, key=lambda name: by_column[name])
            lines.append(
                f"Figures of {column} given for {by_column[column]} of {self._most} different sets"
                " of patients (budget.sets)"
            )
        if trained := self._table.num_cohorts():
            lines.append(f"Updates computed of {trained} different sets of patients")
        return lines

    def groups(self, counts: Mapping[str, int]) -> dict[str, int | None]:
        """Return patients by class; None for less than a cell, or where the rest discloses them."""
        told: dict[str, int | None] = {
            name: count if count >= self.cell else None for name, count in counts.items()
        }
        # The total is known: what is hidden together must be a cell, too.
        while 0 < sum(counts[name] for name, count in told.items() if count is None) < self.cell:
            shown = [name for name, count in told.items() if count is not None]
            if not shown:
                break
            told[min(shown, key=lambda name: counts[name])] = None
        return told

    def at_least(self, count: int, threshold: int, total: int) -> int:
        """Return a disclosable count among `total` patients: itself, or else a lower bound.

        Both it and the rest must be a cell: the total is known, and would give the rest away.
        """
        if count >= self.cell and not 0 < total - count < self.cell:
            return count
        return threshold if count >= threshold else 0

    @staticmethod
    def _name_of(patients: Hashes) -> str:
        return hashlib.sha256(sketch_of(patients).tobytes()).hexdigest()
