"""What a run ends with: its result, and the files of its folder."""

from collections.abc import Mapping
from itertools import chain
from statistics import median

import numpy as np

from erosion_common.formats.json_file import write_json
from erosion_common.formats.model_card import ModelCard, write_model
from erosion_common.protocol.messages import EvaluateReply, Summary
from erosion_common.rounds.records import RoundRecord
from erosion_common.rounds.study import StudyOutcome
from erosion_common.rounds.validation import delivered_scaling
from erosion_common.study.study import Study
from erosion_common.support.files import write_atomically
from erosion_common.support.process import peak_megabytes
from erosion_server.output.report import write_report
from erosion_server.run import findings, provenance
from erosion_server.run import result as results
from erosion_server.run.result import Result
from erosion_server.run.run_folder import RunFolder

MOST_DESCRIBED = 12  # hospitals with their columns in a result


def result_of(outcome: StudyOutcome, started: str, seconds: float) -> Result:
    """Return the figures and the verdict. `started`: ISO 8601, UTC; `seconds`: of this start."""
    study, evaluation = outcome.study, outcome.evaluated.header
    arms = {
        arm: results.ArmResult(
            metrics=evaluation.arms[arm],
            weights=dict(state.weights),
            rounds=state.round,
            skipped_rounds=sum(r.outcome == "skipped" for r in outcome.records[arm]),
            stopped=outcome.records[arm][-1].note if state.stopped else None,
            seconds_per_round=_seconds(outcome.records[arm]),
            selected=choice if (choice := outcome.choices[arm]).loss is not None else None,
            finish=evaluation.finishes.get(arm),
        )
        for arm, state in outcome.finals.items()
    }
    first_arm = next(iter(outcome.finals))
    ledger = findings.contributions(study.hospitals, outcome.records[first_arm])
    measured = {**evaluation.arms, **evaluation.references}
    leak = findings.leak_of(type(study.task), measured, evaluation.best_column)
    p_by_round = results.p_of_last_rounds(type(study.task), outcome.evaluated, outcome.records)
    folds, repeats = study.evaluation.folds, study.evaluation.repeats
    return Result(
        study=study.name,
        user=study.user,
        seed=study.seed,
        commit=provenance.commit(),
        command=provenance.command(),
        started=started,
        seconds=seconds,
        outcome=study.task.outcome,
        arms=arms,
        references=evaluation.references,
        base_rate=evaluation.base_rate,
        comparison=evaluation.comparison,
        class_counts=evaluation.class_counts,
        performance=evaluation.performance,
        patients=_described(outcome, ledger),
        validation=dict(outcome.validation),
        p_by_round=p_by_round,
        contributions=ledger,
        data_check=outcome.data_check,
        leak=leak,
        absent=findings.absences(
            study.hospitals,
            study.user,
            {
                arm: [*(record for record in outcome.in_folds if record.arm == arm), *final]
                for arm, final in outcome.records.items()
            },
        ),
        recounts=findings.recounts(
            [*outcome.in_folds, *chain.from_iterable(outcome.records.values())]
        ),
        privacy=findings.privacy_spent(study, outcome.records),
        peak_megabytes=peak_megabytes() or 0.0,
        cross_fitting=None if folds is None else results.CrossFitting(folds=folds, repeats=repeats),
        verdict=results.verdict(
            type(study.task),
            evaluation.comparison,
            evaluation.arms,
            evaluation.base_rate,
            references=evaluation.references,
            tested=results.words_for_tested(study),
            unit=results.unit_of(study.task),
            shifted_by=study.task.shifted_by,
            leak=leak,
            p_by_round=p_by_round,
        ),
    )


def _described(
    outcome: StudyOutcome, ledger: Mapping[str, findings.Contribution]
) -> dict[str, Summary]:
    weights = {name: given.weight_sum for name, given in ledger.items()}
    peers = sorted(
        (name for name in outcome.summaries if name != outcome.study.user),
        key=lambda name: -weights.get(name, 0.0),
    )
    shown = {outcome.study.user, *peers[: MOST_DESCRIBED - 1]}
    return {
        name: outcome.summaries[name]
        for name in outcome.study.user_first
        if name in shown and name in outcome.summaries
    }


def write(folder: RunFolder, result: Result, outcome: StudyOutcome) -> None:
    """Everything that the run ends with; the report last, for it says that the run has ended."""
    study = outcome.study
    arm = result.delivered_arm
    predictors = outcome.predictors
    write_model(folder.path, _card(folder, study, arm, outcome.evaluation), predictors[arm])
    for name, own in predictors.items():
        card = _card(folder, study, name, outcome.evaluation)
        write_model(folder.of_arm(name).path, card, own)
    write_json(folder.result, result)
    ledgers = {a: findings.contributions(study.hospitals, r) for a, r in outcome.records.items()}
    write_atomically(folder.contributions, findings.as_csv(ledgers))
    write_report(folder.path)


def _card(folder: RunFolder, study: Study, arm: str, evaluation: EvaluateReply) -> ModelCard:
    return ModelCard(
        study=study.name,
        arm=arm,
        user=study.user,
        run=folder.run,
        task=study.task,
        model=study.model,
        seed=study.seed,
        scaling=delivered_scaling(study, arm, evaluation),
        missing_means=evaluation.missing_means,
        versions=provenance.versions(),
    )


def _seconds(records: list[RoundRecord]) -> results.SecondsPerRound:
    seconds = [record.seconds for record in records]
    return results.SecondsPerRound(median=median(seconds), p95=float(np.percentile(seconds, 95)))
