"""One study over the network, from the first hospital's arrival to the report."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from shlex import quote

from erosion_common.aggregation.cohort import DiskCohort, store
from erosion_common.audit.witness import Witness
from erosion_common.rounds.context import RunContext, Updates
from erosion_common.rounds.presence import Presence
from erosion_common.sealed.paillier import CoordinatorKeys
from erosion_common.study.study import Study
from erosion_server.coordination.end_notices import EndNotices
from erosion_server.coordination.folder_store import FolderStore
from erosion_server.coordination.network import NetworkChannel
from erosion_server.coordination.run_end import result_of, write
from erosion_server.coordination.study_strategy import StudyStrategy
from erosion_server.link import Link, LinkGrid
from erosion_server.output.events import RunEvent, RunFinished, StudyStarted
from erosion_server.run.result import Result
from erosion_server.run.run_folder import RunFolder


class Coordinator:
    """Runs one study over a link that is open already."""

    def __init__(
        self,
        study: Study,
        link: Link,
        grid: LinkGrid,
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
        """The caller opens and closes `link` and the study's `grid`.

        `weights`: where files that models start from are. `longest_wait_seconds`: for hospitals
        that are needed; None: no end. `start_with_quorum`: even where the study waits longer.
        `others_stay` and `end_notices`: see `NetworkChannel`. `can_resume`: whether sites will be
        there for a run that is resumed.
        """
        self._study, self._link, self._folder, self._notify = study, link, folder, notify
        self._grid = grid
        again = "start it again"
        if can_resume:
            again = f"resume with `erosion server --resume {quote(str(folder.to_resume))}`"
        remedy = f"Put that right, then {again}."
        self._channel = NetworkChannel(
            study,
            grid,
            link if link.enrolled_only else None,
            others_stay=others_stay,
            end_notices=end_notices,
            run=folder.run,
            whole_run=RunFolder(folder.to_resume).run,
            witness=Witness(folder.witness),
        )
        self._ctx = RunContext(
            study=study,
            channel=self._channel,
            presence=Presence(
                study,
                self._channel,
                notify,
                longest_wait_seconds=longest_wait_seconds,
                start_with_quorum=start_with_quorum,
                address=link.address_for_sites,
                remedy=remedy,
            ),
            emit=notify,
            updates=updates_in(grid.updates),
            sealing_keys=CoordinatorKeys(sites=link.keys),
            run=folder.run,
            weights=weights,
            every_user=folder.within is not None,
            remedy=remedy,
            states_kept_in=f"The parameters of every arm are in {folder.path / 'checkpoints'}.",
        )

    def run(self) -> Result:
        """Runs every arm, evaluates, and writes the result. Raises RunError."""
        clock, folder = time.monotonic(), self._folder
        self._notify(StudyStarted(self._study, self._link.address, folder.path))
        with FolderStore(folder) as kept:
            kept.check(self._study, self._ctx.weights)
            strategy = StudyStrategy(replace(self._ctx, store=kept), self._channel)
            try:
                strategy.start(self._grid)
            finally:
                self._channel.close()
        in_folds = [] if self._study.evaluation.folds is None else kept.rounds_in_folds()
        result = result_of(strategy.outcome, kept.started, time.monotonic() - clock, in_folds)
        result = result.model_copy(update={"resumed": kept.is_resumed})
        write(folder, result, strategy.outcome)
        self._notify(RunFinished(result, folder.path))
        return result

    def waiting_for(self) -> list[str]:
        """Return hospitals that were asked and have not answered; called by other threads."""
        unanswered = self._channel.unanswered()
        members = dict(self._ctx.presence.members)
        return sorted(name for name, member in members.items() if member.connection in unanswered)


def updates_in(spool: Path | None) -> Updates:
    """Return where updates are held: in a folder, or in memory."""
    if spool is None:
        return Updates()
    return Updates(partial(store, spool), partial(DiskCohort, folder=spool))
