"""A small federation of real processes, TLS and enrolment on, for one fault to happen to."""

import json
import re
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import tomli_w

from erosion_common.errors import SiteError
from erosion_common.settings.base import read_toml
from erosion_common.study.study import Study
from erosion_common.support.network import LOOPBACK, free_ports
from erosion_server.enrolment.enrolment import enrol_site, init_federation
from erosion_server.enrolment.federation_folder import Address, FederationFolder
from erosion_server.run.run_folder import write_study
from experiments.faults.network import COORDINATOR, COORDINATOR_ADDRESS, Network, SmallDisk
from experiments.faults.program import POLL_SECONDS, Program, wait_until
from experiments.faults.stepped_clock import SteppedClock
from experiments.program import unpack_kit

HOSPITALS = ("alice", "bob", "carol")  # alice is the user
DEADLINE_SECONDS = 5.0  # of a round


def small_study(**changes: Any) -> Study:
    """Return three hospitals; a round takes about half a second."""
    values: dict[str, Any] = {
        "name": "faults",
        "user": "alice",
        "hospitals": HOSPITALS,
        "rounds": 5000,
        "seed": 3,
        "task": {
            "kind": "tabular",
            "target": "ill",
            "classes": ["no", "yes"],
            "features": ["age", "dose"],
        },
        "scaling": "federated",
        "model": {"name": "logistic"},
        "training": {"steps": 1500, "batch_size": 16, "learning_rate": 0.1},
        "arms": {"fedavg": {}},
        "evaluation": {"test_share": 0.5, "bootstrap": 100},
        "federation": {"round_deadline_seconds": DEADLINE_SECONDS, "join_deadline_seconds": 120.0},
    }
    return Study.model_validate({**values, **changes})


@dataclass(frozen=True, slots=True)
class SeenRound:
    """A line of the journal, and when it was there."""

    at: float  # time.monotonic()
    line: dict[str, Any]

    @property
    def is_done(self) -> bool:
        """Whether the round advanced the model."""
        return bool(self.line["outcome"] == "done")

    def has(self, hospital: str) -> bool:
        """Return whether the hospital's update was part of the round."""
        return bool(self.line["hospitals"][hospital]["outcome"] == "accepted")


class Stage:
    """Use as a context manager: nothing that it started outlives it."""

    def __init__(
        self,
        folder: Path,
        study: Study,
        network: Network | None = None,
        disk: SmallDisk | None = None,
        program: type[Program] = Program,
    ) -> None:
        """On this machine alone, or on the machines of `network`. `disk`: the run's folder."""
        self.folder, self.study, self.network, self.disk = folder, study, network, disk
        self._program = program
        self.run = folder / "run"
        self.clocks: dict[str, SteppedClock] = {}  # of programs with their own wall clock
        self.programs: dict[str, Program] = {}  # the latest of each name
        self._started: list[Program] = []
        self.rounds: list[SeenRound] = []
        self._closed = threading.Event()
        if network is None:
            host, (port,) = LOOPBACK, free_ports(1)
        else:
            host, port = COORDINATOR_ADDRESS, 9092
        self.federation = FederationFolder(folder / "federation")
        init_federation(self.federation, Address(hosts=(host,), port=port))
        self.address = f"{host}:{port}"
        for hospital in study.hospitals:
            self._hand_out_kit(hospital)
        write_study(folder / "study.toml", study)

    def __enter__(self) -> Self:
        """Begin to watch the journal."""
        threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """End all programs that run."""
        self._closed.set()
        for program in self._started:
            program.close()

    @property
    def networked(self) -> Network:
        """The network, where there is one."""
        assert self.network is not None
        return self.network

    def coordinator(self, *, resume: bool = False) -> Program:
        """`erosion server`, listening."""
        what = (
            ["--resume", str(self.run)]
            if resume
            else [str(self.folder / "study.toml"), "--run-folder", str(self.run)]
        )
        options = ["--federation", str(self.federation.path), "--address", self.address]
        program = self._start(COORDINATOR, ["server", *what, *options], COORDINATOR)
        program.wait_for("Listening on")
        return program

    def site(self, hospital: str) -> Program:
        """`erosion client`, started; it may still be loading."""
        return self._start(hospital, ["client", str(self.site_file(hospital))], hospital)

    def copied_site(self, hospital: str) -> Program:
        """The same with a copy of the site's folder, key included: the program "copy"."""
        copy = self.folder / "copy"
        shutil.copytree(self.folder / hospital, copy, ignore=shutil.ignore_patterns("records"))
        return self._start("copy", ["client", str(copy / "site.toml")], hospital)

    def site_file(self, hospital: str) -> Path:
        """Return the site file, in the folder of the site's key and data."""
        return self.folder / hospital / "site.toml"

    def begin(self, *, without: str | None = None) -> dict[str, Program]:
        """The coordinator and the sites, until two rounds are done."""
        self.coordinator()
        for hospital in self.study.hospitals:
            if hospital != without:
                self.site(hospital)
        self.wait_for_rounds(2)
        return self.programs

    def wait_for_rounds(self, number: int) -> None:
        """Wait until the journal holds that many rounds that were done."""
        self.wait(lambda: sum(seen.is_done for seen in self.rounds) >= number)

    def wait(self, wanted: Callable[[], object]) -> None:
        """Until `wanted`; the excuse is what everybody said last."""
        wait_until(wanted, self._last_words)

    def first(self, wanted: Callable[[SeenRound], bool], since: float) -> SeenRound:
        """Return the first round after `since` that is as `wanted`."""

        def found() -> SeenRound | None:
            return next((s for s in self.rounds if s.at > since and wanted(s)), None)

        self.wait(found)
        seen = found()
        assert seen is not None
        return seen

    def journal(self) -> list[dict[str, Any]]:
        """Return the whole lines of the journal."""
        path = self.run / "rounds.jsonl"
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def _watch(self) -> None:
        known: set[int] = set()
        while not self._closed.wait(POLL_SECONDS):
            for line in self.journal():
                if line["round"] not in known:
                    known.add(line["round"])
                    self.rounds.append(SeenRound(time.monotonic(), line))

    def _start(self, label: str, arguments: list[str], machine: str) -> Program:
        within = [] if self.network is None else self.network.inside(machine)
        log = self.folder / f"{label}.log"
        clock = self.clocks.get(label)
        environment = clock.environment if clock else None
        program = self._program(label, arguments, log, within=within, environment=environment)
        self.programs[label] = program
        self._started.append(program)
        return program

    def _last_words(self) -> str:
        said = [f"{name}: {' | '.join(p.lines()[-4:])}" for name, p in self.programs.items()]
        return f"{len(self.rounds)} rounds; " + "; ".join(said)

    def _hand_out_kit(self, hospital: str) -> None:
        enrol_site(self.federation, hospital)
        unpack_kit(self.federation.kit(hospital), self.folder)
        path = self.site_file(hospital)
        values = read_toml(path, "site file", SiteError)
        values["data"]["path"] = "data.csv"
        values["approval"] = {"automatic": "within_limits"}
        values["compute"] = {"public_order": True}
        path.write_text(tomli_w.dumps(values), encoding="utf-8")
        write_patients(path.with_name("data.csv"), hospital)


def write_patients(path: Path, hospital: str) -> None:
    """Sixty patients, which depend on the hospital's name alone."""
    draws = np.random.default_rng(sum(map(ord, hospital)))
    rows = draws.normal(size=(60, 2)) + 1
    ill = np.where(rows @ [1.0, -0.5] + draws.normal(size=60) * 0.5 > 0.5, "yes", "no")
    lines = [f"{a:.4f},{d:.4f},{i}" for (a, d), i in zip(rows, ill, strict=True)]
    path.write_text("\n".join(["age,dose,ill", *lines]) + "\n", encoding="utf-8")


_NEWS = re.compile(  # of all that the programs say; how far a study is would be no news
    r"^erosion: |^round |joined|lost its connection|absent|rejected|skipped|not take part"
    r"|connected to|the coordinator at|^Listening|key|waiting for|goes on",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Row:
    """What one fault cost."""

    fault: str
    coordinator_says: tuple[str, ...]
    site_says: tuple[str, ...]
    journal_says: tuple[str, ...]  # why the site was not part of a round, and of how many
    rounds_lost: int  # begun, but without effect on the model
    rounds_without_site: int | None  # done without the site that has the fault
    seconds_to_go_on: float | None  # from the fault to the next round that was done
    seconds_to_recover: float | None  # from the cause's end to the site's next accepted update


@dataclass
class Observation:
    """Begin it when the fault happens."""

    stage: Stage
    name: str
    site: str | None = None  # that has the fault; None: the coordinator
    at: float = field(default_factory=time.monotonic)
    mended_at: float | None = None
    _marks: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._marks = {name: program.mark for name, program in self.stage.programs.items()}

    def repaired(self) -> None:
        """The cause is gone: from here on the time to recover counts."""
        self.mended_at = time.monotonic()

    def wait_until_back(self) -> None:
        """Until an update of the site is accepted again."""
        self.stage.first(self._is_back, self.mended_at or self.at)

    def row(self, *, said_by: str | None = None) -> Row:
        """Return all that was seen since; `said_by`: the program with the log to quote."""
        after = [seen for seen in self.stage.rounds if seen.at > self.at]
        went_on = next((seen for seen in after if seen.is_done), None)
        since = self.mended_at
        back = next((s for s in after if since and s.at > since and self._is_back(s)), None)
        until = back.at if back else float("inf")
        without = [s for s in after if s.is_done and s.at < until and not self._is_back(s)]
        return Row(
            fault=self.name,
            coordinator_says=self._said(COORDINATOR),
            site_says=self._said(said_by or self.site or ""),
            journal_says=self._reasons(after),
            rounds_lost=sum(not seen.is_done for seen in after),
            rounds_without_site=len(without) if self.site else None,
            seconds_to_go_on=went_on.at - self.at if went_on else None,
            seconds_to_recover=back.at - since if back and since else None,
        )

    def _reasons(self, after: list[SeenRound]) -> tuple[str, ...]:
        if self.site is None:
            return ()
        entries = [seen.line["hospitals"][self.site] for seen in after]
        counts = Counter(f"{e['outcome']}: {e['reason']}" for e in entries if e["reason"])
        return tuple(
            f"{self.site} {words} ({count} {'round' if count == 1 else 'rounds'})"
            for words, count in counts.items()
        )

    def _is_back(self, seen: SeenRound) -> bool:
        return seen.has(self.site) if self.site else seen.is_done

    def _said(self, who: str) -> tuple[str, ...]:
        program = self.stage.programs.get(who)
        if program is None:
            return ()
        lines = [
            line.replace(str(self.stage.folder), "").replace(self.stage.address, "COORDINATOR:PORT")
            for line in program.lines(self._marks.get(who, 0))
            if _NEWS.search(line)
        ]
        return tuple(dict.fromkeys(lines))
