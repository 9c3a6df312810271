"""A finished run as values, read back from its folder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from erosion_common.errors import CheckpointError
from erosion_common.formats.model_card import ModelCard
from erosion_common.protocol.messages import Metrics
from erosion_common.protocol.performance import ModelFigures
from erosion_common.rounds.records import HospitalRecord, RoundRecord
from erosion_common.study.study import Study
from erosion_common.tasks import OUTCOMES
from erosion_server.coordination.folder_store import read_run_decisions
from erosion_server.output.pages import Cell
from erosion_server.run.findings import contributions
from erosion_server.run.journal import has_rounds, read_records
from erosion_server.run.result import (
    AboveBaseRate,
    Result,
    above_base_rate,
    read_result,
    study_as_run,
    unit_of,
    verdict,
    words_for_tested,
)
from erosion_server.run.run_folder import RunFolder, check_has_one_user, stored_study


@dataclass(frozen=True, slots=True)
class RunData:
    """A study, what happened, and how it ended."""

    study: Study
    records: Sequence[RoundRecord]  # arm by arm as they ran, rounds ascending
    result: Result
    exact: Result | None = None  # where `result` is rounded

    @property
    def decisive(self) -> Result:
        """What warnings are decided by: the exact figures, also where rounded ones are shown."""
        return self.exact or self.result

    @property
    def above_base_rate(self) -> AboveBaseRate:
        """Return the arms that predict no better than the base rate."""
        arms = {name: arm.metrics for name, arm in self.decisive.arms.items()}
        return above_base_rate(self.result.task, arms, self.decisive.base_rate)

    @property
    def first_arm(self) -> str:
        """The arm with the weights and distances that are shown."""
        return next(iter(self.result.arms))

    @property
    def peers(self) -> list[str]:
        """The other hospitals, in the study's order; one that only the journal knows comes last."""
        named = [name for record in self.of(self.first_arm) for name in record.hospitals]
        every = dict.fromkeys([*self.study.hospitals, *named])
        return [name for name in every if name != self.result.user]

    def shown(self, hospital: str) -> str:
        """Return what people call a hospital."""
        return self.study.shown(hospital)

    def cell(self, hospital: str) -> str | Cell:
        """Return what people call a hospital, with its name in files below."""
        called = self.shown(hospital)
        return hospital if called == hospital else Cell(called, hospital)

    @property
    def units(self) -> dict[str, str]:
        """Return the unit of each column; "" where it has none, or is a plain number ("1")."""
        features = getattr(self.study.task, "features", ())
        return {each.name: "" if each.unit == "1" else each.unit for each in features}

    def horizon(self, of: ModelFigures | None) -> str:
        """Return by when the figures count an event, with the unit; "" where none is timed."""
        if of is None or of.horizon is None:
            return ""
        unit = getattr(getattr(self.study.task, "target", None), "unit", "")
        return f"{of.horizon:g} {unit}".strip()

    def trained_with(self, arm: str) -> int:
        """Return how many other hospitals gave the arm an update that was used."""
        ledger = contributions(self.peers, self.of(arm))
        return sum(given.rounds > 0 for given in ledger.values())

    @property
    def last_samples(self) -> dict[str, HospitalRecord]:
        """By hospital, its last entry in the first arm that has a number of samples."""
        return {
            name: entry
            for record in self.of(self.first_arm)
            for name, entry in record.hospitals.items()
            if entry.num_samples is not None
        }

    @property
    def own_counts_one(self) -> bool:
        """Whether weights are relative to the user's own in all rounds; Krum may leave that out."""
        own = [record.hospitals.get(self.result.user) for record in self.of(self.first_arm)]
        return all(entry is None or entry.weight_after in (None, 1.0) for entry in own)

    @property
    def distances_are_angles(self) -> bool:
        """Whether the first arm's distances are of directions, and not of lengths."""
        settings = study_as_run(self.study, self.result).arms[self.first_arm]
        return getattr(settings, "distance", "euclidean") == "cosine"

    def of(self, arm: str) -> list[RoundRecord]:
        """Return the rounds of one arm."""
        return [record for record in self.records if record.arm == arm]

    def rounded(self) -> "RunData":
        """Return it for publication: the user's counts to tens, other figures to two digits."""
        records = [*map(_rounded_record, self.records)]
        result = _rounded_result(self.study, self.result, self.above_base_rate)
        return replace(self, result=result, records=records, exact=self.result)


def read_run(folder: RunFolder) -> RunData:
    """Return what is in `folder`. Raises CheckpointError, and StudyError if it did not begin."""
    check_has_one_user(folder)
    study, begun = stored_study(folder), read_run_decisions(folder)
    if begun is not None and begun.study != study.digest:
        raise CheckpointError(
            f"{folder.study} is not the study that the run was begun with, as {folder.beginning}"
            " has it",
            remedy="Bring both back from one backup.",
        )
    try:
        result = read_result(folder.result)
    except FileNotFoundError:
        raise CheckpointError(
            f"{folder.result} is missing: the run did not end, so there is nothing to report",
            remedy=f"Resume it: {folder.resume_command}.",
        ) from None
    try:
        records = read_records(folder.journal)
    except FileNotFoundError:
        raise CheckpointError(
            f"{folder.journal} is missing", remedy="Bring it back from a backup."
        ) from None
    arms = list(result.arms)
    # A resumed run may have written a round twice: the later line counts.
    latest = {(record.arm, record.round): record for record in records if record.arm in arms}
    ordered = [latest[k] for k in sorted(latest, key=lambda k: (arms.index(k[0]), k[1]))]
    for arm, ended in result.arms.items():
        if not has_rounds(ordered, arm, ended.rounds):
            raise CheckpointError(
                f"{folder.journal} does not have the {ended.rounds} rounds of {arm} that"
                f" {folder.result} was made of",
                remedy="Bring both back from one backup, or run the study again.",
            )
    return RunData(study, ordered, result)


def check_card(card: ModelCard, folder: RunFolder) -> None:
    """Raise CheckpointError if the folder's model belongs to another run than its figures."""
    begun = read_run_decisions(folder)
    if begun is not None and card.run not in ("", begun.run):
        raise CheckpointError(
            f"{folder.model_card} is of the run {card.run}, and the rest of the folder of"
            f" {begun.run}",
            remedy="Bring both back from one backup.",
        )


COUNTED = {"num_patients", "num_events", "smallest_class", "class_counts"}
SHARES = {"figure", "alone", *(m.name for each in OUTCOMES for m in each.metrics if m.most == 1)}
EXACT = {"threshold", "level", "p_value", "p_by_cut", "horizon", "flips", "chosen"}


def to_tens(count: int) -> int:
    """Round to tens; 5 patients, the fewest of a class for a verdict, become 10."""
    return (count + 5) // 10 * 10


def _rounded_result(study: Study, result: Result, above: AboveBaseRate) -> Result:
    """Return it with the user's own figures rounded: counts to tens, others to two digits."""
    parts = {"arms", "references", "base_rate", "comparison", "class_counts", "performance", "leak"}
    values = result.model_dump()
    values |= {part: _rounded_values(values[part], part) for part in parts}
    values["arms"] = {
        name: {**result.arms[name].model_dump(), "metrics": arm["metrics"]}
        for name, arm in values["arms"].items()
    }
    made = Result.model_validate(values)
    said = verdict(
        made.task,
        made.comparison,
        {name: arm.metrics for name, arm in made.arms.items()},
        made.base_rate,
        references=made.references,
        tested=words_for_tested(study),
        unit=unit_of(study.task),
        shifted_by=study.task.shifted_by,
        leak=made.leak,
        p_by_round=made.p_by_round,
        above=above,
    )
    return made.model_copy(update={"verdict": said})


def _rounded_values(value: Any, key: str) -> Any:
    """Return plain values, rounded by the key that they stand at."""
    if isinstance(value, Mapping):
        is_counts = key == "class_counts"
        return {k: _rounded_values(v, key if is_counts else str(k)) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded_values(each, key) for each in value]
    if isinstance(value, bool) or value is None or key in EXACT:
        return value
    if key in COUNTED and isinstance(value, int):
        return to_tens(value)
    if key in SHARES and 0.99 < value < 1:
        return 0.99  # 1.000 would say that no patient was ranked wrongly
    if isinstance(value, float):
        return float(f"{value:.2g}") if abs(value) < 1 else float(f"{value:.3g}")
    return value


def _rounded_record(record: RoundRecord) -> RoundRecord:
    if record.user_metrics is None:
        return record
    values = _rounded_values(record.user_metrics.model_dump(), "")
    return replace(record, user_metrics=Metrics.model_validate(values))
