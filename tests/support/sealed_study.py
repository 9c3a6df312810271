"""A sealed study of six hospitals in this process, over a line that loses what a test says."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch

from erosion.simulation.simulator import InProcess, introduce
from erosion_client.dataset.local_dataset import LocalDataset
from erosion_client.evaluation import final_figures
from erosion_client.site_file import load_site
from erosion_client.training.hospital import Hospital
from erosion_common.protocol.messages import (
    DescribeReply,
    EvaluateRequest,
    EvaluateResult,
    TrainRequest,
)
from erosion_common.protocol.performance import Performance
from erosion_common.rounds.channel import Connection, Reply, Request, too_late
from erosion_common.rounds.context import RunContext, Store
from erosion_common.rounds.events import ignore
from erosion_common.rounds.presence import Presence
from erosion_common.rounds.records import Absence
from erosion_common.rounds.study import StudyOutcome, run_study
from erosion_common.sealed.power_residues import CoordinatorKeys
from erosion_common.study.study import Study
from erosion_common.support.keys import PublicKey
from erosion_server.coordination.folder_store import FolderStore
from erosion_server.run.run_folder import RunFolder, new_run_folder
from tests.common.sealed.keys import residue_key
from tests.support.small_study import TEN_NUMBERS, make_site, make_study, sixty_patients

USER, PEERS = "alice", ("bob", "carol", "dave", "erin", "frank")
HOSPITALS = (USER, *PEERS)
ARM, RUN = "weight_erosion", "run"
PROOFS: dict[bytes, Sequence[int]] = {}  # of the one key, by study


def sealed_study(**changes: Any) -> Study:
    """Ten features and a few rounds; `sealed` and `quorum` are the federation's."""
    federation = {"sealed": changes.pop("sealed", True), "quorum": changes.pop("quorum", 5)}
    values: dict[str, Any] = {
        "user": USER,
        "hospitals": list(HOSPITALS),
        "rounds": 3,
        "seed": 3,
        "task": TEN_NUMBERS,
        "training": {"steps": 3, "batch_size": 8, "learning_rate": 0.5},
        "arms": {ARM: {"distance_penalty": 0.02}, "local": {}},
        "evaluation": {"test_share": 0.5, "bootstrap": 100},
        "federation": federation,
    }
    return make_study(**{**values, **changes})


class Unmeasured(Hospital):
    """Reads its patients once for the run, and describes no columns and no curves."""

    def describe(self, study: Study, run: str = RUN) -> DescribeReply:
        return super().describe(study, run)

    def _summary(self, study: Study, prepared: LocalDataset) -> None:
        return None

    def evaluate(self, request: EvaluateRequest) -> EvaluateResult:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(final_figures, "_performance", lambda *_: Performance())
            return super().evaluate(request)


def hospitals(folder: Path, kind: type[Hospital] = Unmeasured, **keys: Any) -> dict[str, Hospital]:
    """All six, who know each other's keys; keyword arguments replace keys of the site files."""
    made = {
        name: kind(make_site(folder, sixty_patients(name), name=name, file=f"{name}.csv", **keys))
        for name in HOSPITALS
    }
    introduce(made)
    return made


def hospitals_of(folder: Path) -> dict[str, Hospital]:
    """All six, of site files that are there already: those of `sealed` processes, say."""
    return {name: Hospital(load_site(folder / name / "site.toml")) for name in HOSPITALS}


class Killed(Exception):  # noqa: N818 - stands for a signal
    """The coordinator's end."""


@dataclass(frozen=True)
class Trouble:
    """What happens to one leg of one round."""

    round: int
    step: str
    lost: Collection[str] = ()  # hospitals that the request does not reach
    late: Collection[str] = ()  # hospitals whose answer does not come back
    kill_after: int | None = None  # answers, after which the coordinator is killed


@dataclass
class Line(InProcess):
    """A transport with troubles, which remembers what came back."""

    study: Study
    known: Mapping[str, Hospital]
    troubles: Collection[Trouble] = ()
    replies: list[tuple[str, Reply]] = field(default_factory=list)
    tamper: Callable[[str, TrainRequest], TrainRequest] = lambda _name, request: request

    def __post_init__(self) -> None:
        super().__init__(self.study, self.known)

    def ask(self, requests: Mapping[Connection, Request], seconds: float) -> Iterator[Reply]:
        for answered, (connection, request) in enumerate(requests.items()):
            name = self._hospitals[connection].name
            trouble = self._trouble(request)
            if trouble.kill_after == answered:
                raise Killed
            if name in trouble.lost:
                yield Reply(connection, Absence("the request did not reach it"))  # it is not late
                continue
            if isinstance(request, TrainRequest):
                request = self.tamper(name, request)
            (reply,) = super().ask({connection: request}, seconds)
            if name in trouble.late:
                yield too_late(connection, seconds)
                continue
            self.replies.append((name, reply))
            yield reply
        if self._trouble(request).kill_after is not None:
            raise Killed

    def _trouble(self, request: Request) -> Trouble:
        if isinstance(request, TrainRequest):
            for trouble in self.troubles:
                if (trouble.round, trouble.step) == (request.round, request.step):
                    return trouble
        return Trouble(0, "")


def enrolled(known: Mapping[str, Hospital]) -> dict[str, PublicKey]:
    """The node keys of hospitals that were introduced."""
    identities = {name: hospital._sealed._given for name, hospital in known.items()}
    return {name: given.node_key.public_key() for name, given in identities.items() if given}


def run_over(line: Line, store: Store) -> StudyOutcome:
    """The whole study."""
    keys = CoordinatorKeys(residue_key, lambda: enrolled(line.known))
    keys._proofs = PROOFS
    ctx = RunContext(
        study=line.study,
        channel=line,
        presence=Presence(line.study, line, ignore, longest_wait_seconds=60.0),
        store=store,
        sealing_keys=keys,
        run=RUN,
    )
    return run_study(ctx)


def run_in(
    folder: Path, line: Line, run: RunFolder | None = None
) -> tuple[StudyOutcome, RunFolder]:
    """The whole study, kept in a run folder, which may be one to go on from."""
    run = run or new_run_folder(folder, line.study)
    with FolderStore(run) as keeper:
        return run_over(line, keeper), run


def run(folder: Path, *troubles: Trouble, sealed: bool = True, **changes: Any) -> StudyOutcome:
    """The sealed study, or the same one without seals."""
    folder.mkdir(exist_ok=True)
    study = sealed_study(sealed=sealed, **changes)
    return run_in(folder, Line(study, hospitals(folder), troubles))[0]


RUNS: dict[str, StudyOutcome] = {}


def plain(*troubles: Trouble, **changes: Any) -> StudyOutcome:
    """The study without seals; it is computed once, as tests only read it."""
    key = repr((troubles, changes))
    if key not in RUNS:
        with TemporaryDirectory() as folder:
            RUNS[key] = run(Path(folder), *troubles, sealed=False, **changes)
    return RUNS[key]


def assert_same(sealed: StudyOutcome, plain: StudyOutcome, arm: str = ARM) -> None:
    """Two runs came to the same, round by round."""
    ours, theirs = sealed.finals[arm], plain.finals[arm]
    assert ours.params.numpy() == pytest.approx(theirs.params.numpy(), abs=1e-6)
    assert ours.weights == pytest.approx(theirs.weights, abs=1e-6)
    for left, right in zip(sealed.records[arm], plain.records[arm], strict=True):
        assert (left.outcome, left.round) == (right.outcome, right.round)
    assert torch.equal(sealed.finals["local"].params, plain.finals["local"].params)
