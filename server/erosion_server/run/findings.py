"""What a result notes: contributions, absences, recounts, privacy, leaks."""

import csv
import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from pydantic import Field

from erosion_common.protocol.messages import BestColumn, FinalMetrics
from erosion_common.rounds.records import HospitalRecord, LeftOut, RoundRecord, counting
from erosion_common.settings.base import Settings
from erosion_common.study.privacy import epsilon_of, strength_of
from erosion_common.study.study import Study
from erosion_common.tasks.task import Task

COLUMNS = ("arm", "hospital", "rounds", "weight_sum", "samples_seen")


class Contribution(Settings):
    """One line of `contributions.csv`: what a hospital gave to an arm."""

    rounds: int  # in which its update was accepted
    weight_sum: float  # over those rounds
    samples_seen: int


def contributions(
    hospitals: Sequence[str], records: Sequence[RoundRecord]
) -> dict[str, Contribution]:
    """Return what each gave to an arm; a round that was undone counts for nobody."""
    counted = counting(records)
    ledger: dict[str, Contribution] = {}
    for name in hospitals:
        entries = [record.hospitals[name] for record in counted if name in record.hospitals]
        accepted = [entry for entry in entries if entry.outcome == "accepted"]
        ledger[name] = Contribution(
            rounds=len(accepted),
            weight_sum=sum(entry.weight_after or 0.0 for entry in accepted),
            samples_seen=sum(entry.samples_seen or 0 for entry in accepted),
        )
    return ledger


def as_csv(ledgers: Mapping[str, Mapping[str, Contribution]]) -> str:
    """Return the contribution ledgers as one table, one line for each hospital of each arm."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for arm, ledger in ledgers.items():
        for hospital, given in ledger.items():
            row = (arm, hospital, given.rounds, f"{given.weight_sum:.6g}", given.samples_seen)
            writer.writerow(row)
    return text.getvalue()


MISSED = ("absent", "rejected")  # outcomes of a hospital that was wanted and gave nothing


class Absent(Settings):
    """A hospital with a wanted update that is missing from a round."""

    hospital: str
    rounds: dict[str, int]  # arm -> rounds missed, of arms that it missed any of; folds' included
    wanted: dict[str, int]  # arm -> rounds in which it was wanted, of the same arms
    left_out: dict[LeftOut, int] = Field(default_factory=dict)  # rounds of all arms in which it was
    # not asked, by the back-off: for being late, or slow, several times in a row
    everywhere: bool  # it gave nothing to any arm
    reason: str  # the latest, completing "the hospital ..."
    arms_differ: bool = False  # arms that wanted it went without it in different rounds


def absences(
    hospitals: Sequence[str], user: str, records: Mapping[str, Sequence[RoundRecord]]
) -> tuple[Absent, ...]:
    """Return every peer that an arm went without, as the rounds' records have it; by arm."""
    found = []
    for name in (name for name in hospitals if name != user):
        wanted: Counter[str] = Counter()
        missed: dict[str, list[tuple[int, int]]] = {arm: [] for arm in records}
        every: list[HospitalRecord] = []
        reason = ""
        for arm, of_arm in records.items():
            part = 0  # a fold, or the final run: arms may take different numbers of rounds in it
            for record in of_arm:
                part += record.round == 1
                if (entry := record.hospitals.get(name)) is None:
                    continue
                every.append(entry)
                wanted[arm] += entry.outcome != "not_asked"
                if entry.outcome in MISSED:
                    missed[arm].append((part, record.round))
                    reason = entry.reason
        if not any(missed.values()):
            continue
        when = [missed[arm] for arm in records if wanted[arm]]
        found.append(
            Absent(
                hospital=name,
                rounds={arm: len(numbers) for arm, numbers in missed.items() if numbers},
                wanted={arm: wanted[arm] for arm, numbers in missed.items() if numbers},
                left_out=Counter(entry.left_out for entry in every if entry.left_out),
                everywhere=not any(entry.outcome == "accepted" for entry in every),
                reason=reason,
                arms_differ=any(rounds != when[0] for rounds in when),
            )
        )
    return tuple(found)


class Recount(Settings):
    """A hospital that introduced itself again with another number: its data were changed."""

    hospital: str
    arm: str
    round: int  # of the arm, the first with the new number
    before: int  # training samples, rounded as the hospital discloses them
    after: int


def recounts(records: Iterable[RoundRecord]) -> tuple[Recount, ...]:
    """Return every change in the rounds' records, in the order in which they happened."""
    told: dict[str, int] = {}
    found = []
    for record in records:
        for name, entry in record.hospitals.items():
            if (now := entry.described_samples) is None:  # it was away
                continue
            if (before := told.get(name, now)) != now:
                arm, number = record.arm, record.round
                found.append(
                    Recount(hospital=name, arm=arm, round=number, before=before, after=now)
                )
            told[name] = now
    return tuple(found)


class PrivacySpent(Settings):
    """Differential privacy of one run, for each patient of each hospital but the user."""

    epsilon: float  # that the study promised
    delta: float
    clip_norm: float
    noise_multiplier: float  # of the clip norm
    spent: dict[str, float]  # by hospital, the most epsilon that the run can have cost


def privacy_spent(
    study: Study, records: Mapping[str, Sequence[RoundRecord]]
) -> PrivacySpent | None:
    """Of a run's records by arm; None where the study has no [privacy].

    Every round in which a hospital was asked counts: its answer may have left and been lost.
    """
    if (terms := study.privacy) is None:
        return None
    noise = terms.noise_multiplier(study.num_releases)
    asked = Counter(
        name
        for arm, of_arm in records.items()
        if not study.arms[arm].user_only
        for record in of_arm
        for name, entry in record.hospitals.items()
        if entry.outcome != "not_asked"
    )
    spent = {
        name: epsilon_of(asked[name] * strength_of(noise), terms.delta)
        for name in study.hospitals
        if name != study.user
    }
    return PrivacySpent(
        epsilon=terms.epsilon,
        delta=terms.delta,
        clip_norm=terms.clip_norm,
        noise_multiplier=noise,
        spent=spent,
    )


TOO_GOOD = 0.99  # AUROC, R² or concordance that no model of patients reaches
STRONG, NEAR = 0.9, 0.01  # of a column alone, and how near it comes to the models


class Leak(Settings):
    """Why the figures are too good."""

    metric: str
    arm: str  # the best, or a local reference
    figure: float
    column: str | None = None  # that alone predicts as well; None: none does
    alone: float | None = None  # its figure

    def sentence(self, task: type[Task]) -> str:
        """Return what is wrong, and what to look at."""
        metric = task.metric(self.metric)
        of_arm = f"{metric.label} {metric.text(self.figure)} of {self.arm}"
        if self.column is None or self.alone is None:
            question = "is a column known only after the outcome, or made from it?"
            return f"{of_arm} is seldom real: {question}"
        return (
            f"The column {self.column} alone predicts like the models ({metric.label}"
            f" {metric.text(self.alone)}, {of_arm}): is it known only after the outcome?"
        )


def leak_of(
    task: type[Task], measured: Mapping[str, FinalMetrics], best: BestColumn | None
) -> Leak | None:
    """Return the sign that these figures of arms and local references are, or None."""
    name = task.leak_metric
    found = {arm: figure for arm, m in measured.items() if (figure := m.get(name)) is not None}
    if not found:
        return None
    arm = max(found, key=found.__getitem__)
    alone = best.measure if best is not None else 0.0
    if best is not None and alone >= max(STRONG, found[arm] - NEAR):
        return Leak(metric=name, arm=arm, figure=found[arm], column=best.name, alone=alone)
    return Leak(metric=name, arm=arm, figure=found[arm]) if found[arm] > TOO_GOOD else None
