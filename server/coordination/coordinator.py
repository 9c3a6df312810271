"""One study over the network, from the first hospital's arrival to the report."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from shlex import quote

from erosion.common.aggregation.cohort import DiskCohort, store
from erosion.common.rounds.arm_run import ArmRun, Storage
from erosion.common.rounds.records import RoundRecord
from erosion.common.rounds.study_run import StudyRun
from erosion.common.rounds.surroundings import Surroundings
from erosion.common.sealed.distances.coordinator_keys import CoordinatorKeys
from erosion.common.study.study import Study
from erosion.server.coordination.end_notices import EndNotices
from erosion.server.coordination.event_listener import EventListener
from erosion.server.coordination.network import NetworkTransport
from erosion.server.coordination.run_end import result_of, write
from erosion.server.coordination.run_keeper import RunKeeper
from erosion.server.coordination.strategy import PersonalizedStrategy
from erosion.server.link import Link, LinkGrid
from erosion.server.output.events import RunEvent, RunFinished, StudyStarted
from erosion.server.run.result import (
    Result,
)
from erosion.server.run.run_folder import RunFolder
from erosion.server.run.witness import Witness


class Coordinator:
    """Runs one study over a link that is open already."""

    def __init__(
        self,
        study: Study,
        link: Link,
        channel: LinkGrid,
        folder: RunFolder,
        notify: Callable[[RunEvent], None] = lambda _event: None,
        *,
        weights: Path | None = None,
        longest_wait_seconds: float | None = None,
        start_with_quorum: bool = False,
        others_stay: bool = False,
        end_notices: EndNotices | None = None,
        can_resume: bool = True,
    ) -> None:
        """The caller opens and closes `link` and the study's `channel`.

        `weights`: where files that models start from are. `longest_wait_seconds`: for hospitals
        that are needed; None: no end. `start_with_quorum`: whatever the study says of its start.
        `others_stay` and `end_notices`: see `NetworkTransport`. `can_resume`: whether sites will be
        there for a run that is resumed.
        """
        self._weights = weights
        self._longest_wait_seconds = longest_wait_seconds
        self._start_with_quorum = start_with_quorum
        self._go_on = "start it anew"
        if can_resume:
            self._go_on = f"go on with `erosion server --resume {quote(str(folder.to_resume))}`"
        self._study, self._link, self._folder, self._notify = study, link, folder, notify
        self._channel = channel
        authorizer = link if link.enrolled_only else None
        self._transport = NetworkTransport(
            study,
            channel,
            authorizer,
            others_stay=others_stay,
            end_notices=end_notices,
            run=folder.run,
            whole_run=RunFolder(folder.to_resume).run,
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
                    storage=storage_in(self._channel.updates),
                    sealing_keys=CoordinatorKeys(sites=link.keys),
                    run=folder.run,
                    weights=self._weights,
                    address=link.address_for_sites,
                    longest_wait_seconds=self._longest_wait_seconds,
                    start_with_quorum=self._start_with_quorum,
                    every_user=folder.within is not None,
                    remedy=f" Put that right, then {self._go_on}.",
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
        strategy.play(self._channel, num_rounds)


def storage_in(spool: Path | None) -> Storage:
    """Where updates are kept: in a folder, or in memory."""
    if spool is None:
        return Storage()
    return Storage(partial(store, spool), partial(DiskCohort, folder=spool))
