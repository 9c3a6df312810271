"""One study over the network, from the first hospital's arrival to the report."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from shlex import quote
from statistics import median

import numpy as np

from erosion.common.aggregation.disk_cohort import DiskCohort, store
from erosion.common.formats.json_file import write_json
from erosion.common.formats.model_card import ModelCard, write_model
from erosion.common.protocol.messages import EvaluateReply
from erosion.common.protocol.scaling import CUT
from erosion.common.rounds.arm_run import ArmRun, Storage
from erosion.common.rounds.model_selection import SelectedSettings
from erosion.common.rounds.records import RoundRecord
from erosion.common.rounds.study_run import Outcome, StudyRun
from erosion.common.rounds.surroundings import Surroundings
from erosion.common.sealed.distances.coordinator_keys import CoordinatorKeys
from erosion.common.study.study import Study
from erosion.common.support.files import write_atomically
from erosion.common.support.memory import peak_megabytes
from erosion.server.coordination.event_listener import EventListener
from erosion.server.coordination.farewells import Farewells
from erosion.server.coordination.network import NetworkTransport
from erosion.server.coordination.run_keeper import RunKeeper
from erosion.server.coordination.strategy import PersonalizedStrategy
from erosion.server.link import Link
from erosion.server.output.events import RunEvent, RunFinished, StudyStarted
from erosion.server.output.report.write import write_report
from erosion.server.run import provenance
from erosion.server.run.absences import absences
from erosion.server.run.ledger import as_csv, contributions
from erosion.server.run.privacy_spent import privacy_spent
from erosion.server.run.recounts import recounts
from erosion.server.run.result import (
    ArmResult,
    CrossFitting,
    Result,
    SecondsPerRound,
    Selected,
    verdict,
    whom_it_tests,
)
from erosion.server.run.run_folder import RunFolder
from erosion.server.run.witness import Witness


class Coordinator:
    """Runs one study over a link that is open already."""

    def __init__(
        self,
        study: Study,
        link: Link,
        folder: RunFolder,
        notify: Callable[[RunEvent], None] = lambda _event: None,
        *,
        weights: Path | None = None,
        longest_wait_seconds: float | None = None,
        start_with_quorum: bool = False,
        others_stay: bool = False,
        farewells: Farewells | None = None,
    ) -> None:
        """The caller starts and stops `link`.

        `weights`: where files that models start from are. `longest_wait_seconds`: for hospitals
        that are needed; None: no end. `start_with_quorum`: whatever the study says of its start.
        `others_stay` and `farewells`: see `NetworkTransport`.
        """
        self._weights = weights
        self._longest_wait_seconds = longest_wait_seconds
        self._start_with_quorum = start_with_quorum
        self._study, self._link, self._folder, self._notify = study, link, folder, notify
        authorizer = link if link.enrolled_only else None
        self._transport = NetworkTransport(
            study,
            link.grid,
            authorizer,
            others_stay=others_stay,
            farewells=farewells,
            run=folder.run,
            witness=Witness(folder.witness),
        )
        self._run: StudyRun | None = None

    def run(self) -> Result:
        """Run every arm, evaluate, and write the result. Raises RunError."""
        clock = time.monotonic()
        folder, link = self._folder, self._link
        self._notify(StudyStarted(self._study, link.address, folder.path))
        with RunKeeper(folder) as keeper:
            keeper.check(self._study, self._weights)
            self._run = StudyRun(
                self._study,
                Surroundings(
                    transport=self._transport,
                    listener=EventListener(self._notify),
                    keeper=keeper,
                    play_rounds=self._play_rounds,
                    storage=storage_in(link.updates),
                    sealing_keys=CoordinatorKeys(sites=link.keys),
                    run=folder.run,
                    weights=self._weights,
                    address=link.address_for_sites,
                    longest_wait_seconds=self._longest_wait_seconds,
                    start_with_quorum=self._start_with_quorum,
                    every_user=folder.within is not None,
                    remedy=" Put that right, then go on with `erosion server --resume"
                    f" {quote(str(folder.to_resume))}`.",
                    where_states_are=" The parameters of every arm are in"
                    f" {folder.path / 'checkpoints'}.",
                ),
            )
            try:
                outcome = self._run.run()
            finally:
                self._transport.close()
        in_folds = [] if self._study.evaluation.folds is None else keeper.rounds_in_folds()
        result = result_of(outcome, keeper.started, time.monotonic() - clock, in_folds)
        result = result.model_copy(update={"resumed": keeper.is_resumed})
        write(folder, result, outcome)
        self._notify(RunFinished(result, folder.path))
        return result

    def waiting_for(self) -> list[str]:
        """Hospitals that were asked and have not answered; for other threads to look at."""
        if self._run is None:
            return []
        unanswered = self._transport.unanswered()
        members = dict(self._run.membership.members)
        return sorted(name for name, member in members.items() if member.connection in unanswered)

    def _play_rounds(
        self, run: ArmRun, num_rounds: int, on_round: Callable[[RoundRecord], None]
    ) -> None:
        strategy = PersonalizedStrategy(run, self._transport, on_round)
        strategy.play(self._link.grid, num_rounds)


def storage_in(spool: Path | None) -> Storage:
    """Where updates are kept: in a folder, or in memory."""
    if spool is None:
        return Storage()
    return Storage(partial(store, spool), partial(DiskCohort, folder=spool))


def result_of(
    outcome: Outcome, started: str, seconds: float, in_folds: Sequence[RoundRecord] = ()
) -> Result:
    """The figures and the verdict. `started`: ISO 8601, UTC; `seconds`: of this start alone.

    `in_folds`: the rounds of a cross-fitted evaluation, which the figures come from.
    """
    study, evaluation = outcome.study, outcome.evaluated.header
    arms = {
        arm: ArmResult(
            metrics=evaluation.arms[arm],
            weights=dict(state.weights),
            rounds=state.round,
            skipped_rounds=sum(r.outcome == "skipped" for r in outcome.records[arm]),
            stopped=outcome.records[arm][-1].note if state.stopped else None,
            seconds_per_round=_seconds(outcome.records[arm]),
            selected=_selected(outcome.choices[arm]),
        )
        for arm, state in outcome.finals.items()
    }
    first_arm = next(iter(outcome.finals))
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
        base_rate=evaluation.base_rate,
        comparison=evaluation.comparison,
        num_patients=evaluation.num_patients,
        class_counts=evaluation.class_counts,
        contributions=contributions(study.hospitals, outcome.records[first_arm]),
        absent=absences(
            study.hospitals,
            study.user,
            {
                arm: [*(record for record in in_folds if record.arm == arm), *final]
                for arm, final in outcome.records.items()
            },
        ),
        recounts=recounts([*in_folds, *chain.from_iterable(outcome.records.values())]),
        privacy=privacy_spent(study, outcome.records),
        peak_megabytes=peak_megabytes() or 0.0,
        cross_fitting=None if folds is None else CrossFitting(folds=folds, repeats=repeats),
        verdict=verdict(
            type(study.task),
            evaluation.comparison,
            evaluation.arms,
            evaluation.base_rate,
            tested=whom_it_tests(study),
            shifted_by=study.task.shifted_by,
        ),
    )


def write(folder: RunFolder, result: Result, outcome: Outcome) -> None:
    """Everything that the run ends with; the report last, for it says that the run has ended."""
    finals, study = outcome.finals, outcome.study
    arm = result.delivered_arm
    parameters = {name: outcome.personal.get(name, s.params) for name, s in finals.items()}
    write_model(folder.path, _card(study, arm, outcome.evaluation), parameters[arm])
    for name, own in parameters.items():
        write_model(folder.of_arm(name).path, _card(study, name, outcome.evaluation), own)
    write_json(folder.result, result)
    ledgers = {a: contributions(study.hospitals, r) for a, r in outcome.records.items()}
    write_atomically(folder.contributions, as_csv(ledgers))
    write_report(folder.path)


def _card(study: Study, arm: str, evaluation: EvaluateReply) -> ModelCard:
    own = evaluation.own_scaling
    scaling = own if own is not None and study.arms[arm].user_only else evaluation.scaling
    return ModelCard(
        study=study.name,
        arm=arm,
        user=study.user,
        task=study.task,
        model=study.model,
        seed=study.seed,
        scaling=scaling,
        cut=None if scaling is None else CUT,
        missing_means=evaluation.missing_means,
        versions=provenance.versions(),
    )


def _selected(choice: SelectedSettings) -> Selected | None:
    if choice.loss is None:
        return None
    return Selected(settings=dict(choice.settings), rounds=choice.rounds, loss=choice.loss)


def _seconds(records: list[RoundRecord]) -> SecondsPerRound:
    seconds = [record.seconds for record in records]
    return SecondsPerRound(median=median(seconds), p95=float(np.percentile(seconds, 95)))
