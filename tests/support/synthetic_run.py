"""A made-up run that looks like a real one: five hospitals, one of which codes its labels wrong."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from erosion_common.formats.json_file import write_json
from erosion_common.formats.model_card import ModelCard, write_model
from erosion_common.protocol.messages import Comparison, FinalMetrics, Interval, Metrics
from erosion_common.protocol.performance import Performance
from erosion_common.rounds.events import ArmFinished, ArmStarted, HospitalJoined, RoundFinished
from erosion_common.rounds.records import HospitalRecord, RoundRecord
from erosion_common.study.study import Study
from erosion_common.tasks import REGISTRY
from erosion_server.output.events import RunFinished, StudyStarted
from erosion_server.output.observers import Observer
from erosion_server.run.findings import Contribution
from erosion_server.run.journal import Journal
from erosion_server.run.result import ArmResult, Result, SecondsPerRound, verdict
from erosion_server.run.run_folder import RunFolder, write_study
from tests.support import small_study
from tests.support.html_page import EVIL

HOME = "home"
HOSPITALS = (HOME, "alike", "small-tumours", "large-tumours", "miscoded")
SPEED = {"alike": 0.3, "small-tumours": 1.0, "large-tumours": 1.4, "miscoded": 4.0}
ARMS = ("weight_erosion", "fedavg", "local")
PATIENTS = {HOME: 24, "alike": 110, "small-tumours": 105, "large-tumours": 114, "miscoded": 110}
FOLDER = Path("/somewhere/runs/20260504T092107-breast-cancer")


@dataclass(frozen=True)
class Run:
    """Everything that a run folder holds, as values."""

    study: Study
    records: Sequence[RoundRecord]
    result: Result
    extra_lines: Sequence[str] = field(default_factory=tuple)  # of the journal

    def write(self, path: Path) -> Path:
        """Make the run folder."""
        folder = RunFolder(path)
        path.mkdir(parents=True)
        write_study(folder.study, self.study)
        journal = Journal(folder.journal)
        for record in self.records:
            journal.write(record)
        journal.close()
        with folder.journal.open("a") as file:
            file.writelines(self.extra_lines)
        write_json(folder.result, self.result)
        card = ModelCard(
            study=self.study.name,
            arm=self.result.verdict.best_arm or next(iter(self.result.arms)),
            user=self.study.user,
            task=self.study.task,
            model=self.study.model,
            scaling=None,
            versions={"python": "3.11.9"},
        )
        write_model(path, card, torch.zeros(6))
        for other in (folder.report, folder.contributions):
            other.touch()
        return path


def make_study(
    arms: Sequence[str] = ARMS, hospitals: Sequence[str] = HOSPITALS, rounds: int = 30
) -> Study:
    """A study with these arms and hospitals."""
    return small_study.make_study(
        name="breast-cancer",
        user=hospitals[0],
        hospitals=list(hospitals),
        rounds=rounds,
        task={
            "kind": "tabular",
            "target": "diagnosis",
            "classes": ["benign", "malignant"],
            "features": ["mean radius", "mean texture"],
        },
        training={"steps": 5, "batch_size": 16, "learning_rate": 0.5},
        arms={arm: {} for arm in arms},
    )


def make_run(
    arms: Sequence[str] = ARMS,
    hospitals: Sequence[str] = HOSPITALS,
    rounds: int = 30,
    *,
    auroc: bool = True,
    reasons: Mapping[str, str] | None = None,
    skipped: Sequence[int] = (),
) -> Run:
    """A run; `reasons` are what rejected hospitals are said to have done wrong in every round."""
    study = make_study(arms, hospitals, rounds)
    records = [
        record
        for arm in arms
        for record in make_records(
            arm, hospitals, rounds, auroc=auroc, reasons=reasons or {}, skipped=skipped
        )
    ]
    finals = {arm: final_metrics(arm, rounds, auroc) for arm in arms}
    base_rate = base_rate_metrics()
    comparison = None
    if len(arms) > 1:
        comparison = Comparison(
            arm=arms[0],
            reference=arms[-1],
            num_patients=91,
            smallest_class=34,
            mean_difference=finals[arms[0]]["log_loss"] - finals[arms[-1]]["log_loss"],
            p_value=0.0061,
            conclusion="better",
        )
    own = [r for r in records if r.arm == arms[0]]
    last = own[-1].hospitals
    result = Result(
        study=study.name,
        user=study.user,
        seed=study.seed,
        commit="9f1c2ab4d5e6f708192a3b4c5d6e7f8091a2b3c4+changes",
        command="erosion testbed --runs runs",
        started="2026-05-04T09:21:07+00:00",
        seconds=8.42,
        arms={
            arm: ArmResult(
                metrics=finals[arm],
                weights={
                    name: entry.weight_after if entry.weight_after is not None else 1.0
                    for name, entry in next(
                        r for r in reversed(records) if r.arm == arm
                    ).hospitals.items()
                },
                rounds=rounds,
                skipped_rounds=len(skipped),
                seconds_per_round=SecondsPerRound(median=0.031, p95=0.052),
            )
            for arm in arms
        },
        comparison=comparison,
        class_counts={"benign": 57, "malignant": 34},
        contributions={
            name: Contribution(
                rounds=sum(r.hospitals[name].outcome == "accepted" for r in own),
                weight_sum=sum(r.hospitals[name].weight_after or 0.0 for r in own),
                samples_seen=sum(r.hospitals[name].samples_seen or 0 for r in own),
            )
            for name in last
        },
        peak_megabytes=412.3,
        base_rate=base_rate,
        verdict=verdict(REGISTRY["classification"], comparison, finals, base_rate),
    )
    return Run(study, records, result)


def make_records(
    arm: str,
    hospitals: Sequence[str] = HOSPITALS,
    rounds: int = 30,
    *,
    auroc: bool = True,
    reasons: Mapping[str, str] | None = None,
    skipped: Sequence[int] = (),
) -> list[RoundRecord]:
    """The journal of one arm."""
    generator = np.random.default_rng([len(arm), len(hospitals)])
    weights: dict[str, float | None] = dict.fromkeys(hospitals, None)
    records = []
    for number in range(1, rounds + 1):
        entries = {}
        for position, name in enumerate(hospitals):
            if arm == "local" and position > 0:
                continue
            before = weights[name]
            if name in (reasons or {}):
                reason = (reasons or {})[name].replace("ROUND", str(number))
                entries[name] = HospitalRecord("rejected", reason, None, before, before)
                continue
            if name == "large-tumours" and 11 <= number <= 14:
                reason = "was not connected"
                entries[name] = HospitalRecord("absent", reason, None, before, before)
                continue
            if before == 0.0:
                entries[name] = HospitalRecord(
                    "not_asked", weight_before=before, weight_after=before
                )
                continue
            speed = SPEED.get(name, 0.2 + 0.17 * position)
            distance = speed * (1 + 0.06 * number) * float(generator.uniform(0.8, 1.2))
            if position == 0:
                distance, after = 0.0, 1.0
            elif arm == "fedavg":
                after = PATIENTS.get(name, 100) / 24
            else:
                used = (5 * 16 * (number - 1)) // PATIENTS.get(name, 100)
                after = max(0.0, (before or 1.0) - (1 + 0.2 * used) * 0.01 * distance)
            if number in skipped:
                after = before if before is not None else 1.0
            weights[name] = after
            entries[name] = HospitalRecord(
                "accepted",
                distance=distance,
                weight_before=before,
                weight_after=after,
                num_samples=PATIENTS.get(name, 100),
                samples_seen=80,
                site_seconds=0.004,
                bytes_received=640,
                bytes_sent=1800,
            )
        skip = number in skipped
        records.append(
            RoundRecord(
                arm,
                number,
                "skipped" if skip else "done",
                "the user's own site is absent: was not connected" if skip else "",
                entries,
                user_metrics=None if skip else metrics_after(arm, number - 1, auroc),
                seconds=float(generator.uniform(0.025, 0.045)),
            )
        )
    return records


def metrics_after(arm: str, rounds: int, auroc: bool = True) -> Metrics:
    """The user's metrics after so many rounds: better with time, best with Weight Erosion."""
    floor = {"weight_erosion": 0.115, "fedavg": 0.238}.get(arm, 0.158)
    log_loss = floor + (0.693 - floor) * math.exp(-rounds / 4) + 0.004 * math.sin(rounds)
    accuracy = round(91 * (1 - 0.28 * log_loss - 0.2 * math.exp(-rounds / 3))) / 91
    return Metrics.model_validate(
        {
            "num_patients": 91,
            "accuracy": accuracy,
            "majority_accuracy": 57 / 91,
            "auroc": 1 - 0.07 * log_loss if auroc else None,
            "brier": log_loss / 4.8,
            "log_loss": log_loss,
        }
    )


def base_rate_metrics() -> FinalMetrics:
    """Those of the base rate."""
    return FinalMetrics.model_validate(
        {
            "num_patients": 91,
            "accuracy": 57 / 91,
            "majority_accuracy": 57 / 91,
            "auroc": 0.5,
            "brier": 0.234,
            "log_loss": 0.661,
            "intervals": {},
        }
    )


def final_metrics(arm: str, rounds: int, auroc: bool = True) -> FinalMetrics:
    """The final figures, with intervals."""
    metrics = metrics_after(arm, rounds, auroc)
    intervals = {
        name: Interval(low=value - 0.035, high=min(1.0, value + 0.025))
        for name, value in metrics.model_dump().items()
        if name in ("accuracy", "auroc", "brier", "log_loss") and value is not None
    }
    return FinalMetrics(**metrics.model_dump(), intervals=intervals)


def play(observer: Observer, run: Run, folder: Path = FOLDER) -> None:
    """Tell the observer of a whole run in `folder`."""
    hospitals = run.study.hospitals
    observer.notify(StudyStarted(run.study, "127.0.0.1:41237", folder))
    for number, hospital in enumerate(hospitals, start=1):
        num_samples = PATIENTS.get(hospital, 100)
        observer.notify(HospitalJoined(hospital, num_samples, tuple(hospitals[number:])))
    for arm in run.study.arms:
        observer.notify(ArmStarted(arm, run.study.rounds))
        for record in run.records:
            if record.arm == arm:
                observer.notify(RoundFinished(record))
        observer.notify(ArmFinished(arm))
    observer.notify(RunFinished(run.result, folder))


def estimated(value: float, half: float = 0.1) -> dict[str, float]:
    return {"value": value, "low": value - half, "high": value + half}


def performance(**changes: Any) -> Performance:
    """As the user's site sends it."""
    share = {
        name: estimated(0.8)
        for name in ("sensitivity", "specificity", "positive_predictive_value", "net_benefit")
    }
    curve = {
        "x": [0.0, 0.2, 0.5, 1.0],
        "y": [0.0, 0.6, 0.9, 1.0],
        "low": [0.0, 0.5, 0.8, 1.0],
        "high": [0.1, 0.7, 1.0, 1.0],
    }
    models = [
        {
            "model": name,
            "event": "malignant",
            "num_patients": 91,
            "num_events": 34,
            "prevalence": 0.374,
            "estimates": {
                "auroc": estimated(0.9),
                "calibration_slope": estimated(0.7, 0.2),
                "expected_over_observed": estimated(1.05),
            },
            "curves": {
                **dict.fromkeys(("roc", "precision_recall", "calibration"), curve),
                "net_benefit": {**curve, "x": [0.0, 0.2, 0.5, 0.9]},
            },
            "groups": [{"num_patients": 18, "predicted": 0.31, "observed": estimated(0.3)}],
            "thresholds": [{"threshold": 0.1}, {"threshold": 0.2, "alerts": 0.53, **share}],
        }
        for name in ("weight_erosion", "local")
    ]
    values: dict[str, Any] = {
        "models": models,
        "shown": "weight_erosion",
        "subgroups": [
            {
                "column": "mean radius",
                "group": "below 14",
                "num_patients": 51,
                "discrimination": estimated(0.92),
                "calibration": estimated(1.0),
            },
            {"column": "mean radius", "group": "14 and above", "num_patients": None},
        ],
        "importance": [{"column": "mean radius", "loss": estimated(0.2)}],
        "dependence": [
            {"column": "mean radius", "x": [10.0, 20.0], "y": [0.2, 0.7]},
            {"column": "mean texture", "categories": [EVIL, "b"], "y": [0.2, 0.7]},
        ],
        "coefficients": [
            {
                "column": "mean radius",
                "value": 0.693147,
                "refits": estimated(0.693147),
                "alone": estimated(1.0),
            }
        ],
    }
    return Performance.model_validate({**values, **changes})


def with_performance(found: Performance, **more: Any) -> Run:
    run = make_run(rounds=3)
    return replace(run, result=run.result.model_copy(update={"performance": found, **more}))
