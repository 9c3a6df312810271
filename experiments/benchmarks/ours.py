"""Our own deployment under measurement: `server` and `client`, a process each.

Everything that a real round does is in it: screening, aggregation, distances, the journal, and the
checkpoint.
"""

import argparse
import json
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from erosion.simulation.free_ports import LOOPBACK, free_ports
from erosion_client.connection.agent import Agent, Until
from erosion_client.connection.site_link import SiteLink
from erosion_common.protocol import wire
from erosion_common.protocol.messages import DescribeReply, TrainReply, TrainResult
from erosion_common.rounds.arm import Arm
from erosion_common.rounds.context import RunContext
from erosion_common.rounds.driver import run_arm
from erosion_common.rounds.events import ignore
from erosion_common.rounds.presence import Presence
from erosion_common.rounds.round import first_state
from erosion_common.study.study import Study
from erosion_common.support.logs import configure_logging
from erosion_common.support.process import keep_freed_memory, return_freed_memory
from erosion_server.coordination.coordinator import updates_in
from erosion_server.coordination.folder_store import FolderStore
from erosion_server.coordination.network import NetworkChannel
from erosion_server.coordination.study_strategy import StudyStrategy
from erosion_server.enrolment.federation_folder import FederationFolder
from erosion_server.link.link import make_link
from erosion_server.run.run_folder import RunFolder
from experiments.benchmarks.measurement import (
    Measurement,
    RoundClock,
    initial_parameters,
    measured,
    site_constant,
)
from experiments.benchmarks.process_memory import resident_bytes
from experiments.benchmarks.processes import Processes

PROGRAMS = "experiments.benchmarks.ours"


def measure(
    num_sites: int, num_rounds: int, dim: int, *, deadline_seconds: float = 900
) -> Measurement:
    """Run `num_rounds` rounds of a `dim`-float model."""
    (port,) = free_ports(1)
    address = f"{LOOPBACK}:{port}"
    with Processes(deadline_seconds=deadline_seconds) as processes:
        folder = processes.folder
        counts = (str(num_sites), str(num_rounds), str(dim))
        server = processes.start_module("server", PROGRAMS, "server", address, *counts, folder)
        for site in range(num_sites):
            processes.start_module(
                "client", PROGRAMS, "client", address, str(site), "--dim", str(dim)
            )
        processes.wait_for_exit([server])
        found = measured(
            "ours",
            processes,
            folder / "clock.jsonl",
            num_sites=num_sites,
            num_rounds=num_rounds,
            dim=dim,
        )
        parts = json.loads((folder / "parts.json").read_text())
        return replace(found, seconds_by_part=parts)


JOIN_SECONDS = 600.0


def study_of(num_sites: int, num_rounds: int) -> Study:
    """FedAvg over sites named site0, site1, ...; the model of the file is not used."""
    return Study.model_validate(
        {
            "name": "overhead",
            "user": "site0",
            "hospitals": [f"site{site}" for site in range(num_sites)],
            "rounds": num_rounds,
            "task": {"kind": "tabular", "target": "y", "classes": ["0", "1"], "features": ["x"]},
            "scaling": "none",
            "model": {"name": "logistic"},
            "training": {"steps": 1},
            "arms": {"fedavg": {"weighting": "uniform"}},
            "federation": {"round_deadline_seconds": 300, "quorum": num_sites},
        }
    )


class ClockedStrategy(StudyStrategy):
    """The strategy itself, with a stop-watch around its two halves."""

    parts: dict[str, list[float]]

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Time the making of the requests."""
        begun = time.perf_counter()
        messages = super().configure_train(server_round, arrays, config, grid)
        self._sent = time.perf_counter()
        self.parts.setdefault("making requests", []).append(self._sent - begun)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Time the waiting for replies, and what is done with them meanwhile and after."""
        waited = time.perf_counter() - self._sent  # for the requests to be handed over

        def timed() -> Iterator[Message]:
            nonlocal waited
            begun = time.perf_counter()
            for reply in replies:
                waited += time.perf_counter() - begun
                yield reply
                del reply
                begun = time.perf_counter()
            waited += time.perf_counter() - begun

        result = super().aggregate_train(server_round, timed())
        spent = time.perf_counter() - self._sent - waited
        self.parts.setdefault("waiting for transfer and sites", []).append(waited)
        self.parts.setdefault("screening, aggregating, recording", []).append(spent)
        return result


def serve(
    address: str,
    num_sites: int,
    num_rounds: int,
    dim: int,
    folder: Path,
    *,
    on_disk: bool,
    federation: Path | None = None,
) -> None:
    """Run the coordinator to the end of the last round."""
    study = study_of(num_sites, num_rounds)
    keys = None if federation is None else FederationFolder(federation)
    link = make_link(study.hospitals, address, keys, is_short_of_memory=on_disk)
    link.start()
    grid = link.open(folder / "spool" if on_disk else None)
    channel = NetworkChannel(study, grid, link if link.enrolled_only else None)
    presence = Presence(study, channel, ignore, longest_wait_seconds=JOIN_SECONDS)
    presence.wait_for(study.hospitals, len(study.hospitals))
    before = resident_bytes("VmRSS")
    clock = RoundClock(folder / "clock.jsonl")
    algorithm = study.arms["fedavg"].build(study.build_context)
    arm = Arm(
        "fedavg", algorithm, first_state(algorithm, torch.from_numpy(initial_parameters(dim))), []
    )
    with FolderStore(RunFolder(folder)) as kept:
        kept.resume(study, {})
        ctx = RunContext(
            study=study,
            channel=channel,
            presence=presence,
            store=kept,
            emit=lambda _event: clock.tick(),
            updates=updates_in(grid.updates),
            run="benchmark",
        )
        strategy = ClockedStrategy(ctx, channel)
        strategy.parts, strategy.grid = {}, grid
        clock.tick()
        worked = time.process_time()
        run_arm(replace(ctx, run_round=strategy.run_round), arm, num_rounds)
        worked = time.process_time() - worked
    processor = {"seconds_per_round": worked / num_rounds}
    (folder / "processor.json").write_text(json.dumps(processor))
    memory = {"before": before, "peak": resident_bytes("VmHWM")}
    (folder / "memory.json").write_text(json.dumps(memory))
    start = torch.from_numpy(initial_parameters(dim))
    clock.finish(float((arm.state.params - start).double().mean()))
    medians = {part: float(np.median(spent)) for part, spent in strategy.parts.items()}
    (folder / "parts.json").write_text(json.dumps(medians))
    link.stop()


class AddingSite:
    """A hospital with an update of a constant plus noise of mean zero.

    The noise is there because a constant update would be the same chunk over and over, which the
    object store keeps once.
    """

    def __init__(self, site: int, dim: int, studies: wire.KnownStudies) -> None:
        noise = np.random.default_rng(site + 1).standard_normal(dim, dtype=np.float32)
        self.name, self._studies = f"site{site}", studies
        self._update = torch.from_numpy(noise - noise.mean() + site_constant(site))

    def answer(self, message_type: str, content: RecordDict) -> RecordDict:
        """Return what this site says to a request."""
        if message_type == wire.DESCRIBE:
            wire.decode_describe(content, self._studies)
            reply = DescribeReply(hospital=self.name, num_samples=1, software="benchmark")
            return wire.encode_describe_reply(reply)
        request = wire.decode_train(content, self._studies)
        assert request.parameters is not None
        trained = request.parameters + self._update  # the work that every peer's site does
        header = TrainReply(
            hospital=self.name,
            arm=request.arm,
            round=request.round,
            num_samples=1,
            samples_seen=1,
            seconds=0.0,
        )
        return wire.encode_train_result(TrainResult(header, trained - request.parameters))

    def app(self) -> ClientApp:
        """Return the ClientApp."""
        app = ClientApp()

        @app.query("describe")
        def describe(message: Message, _context: Any) -> Message:
            return self._reply(message)

        @app.train()
        def train(message: Message, _context: Any) -> Message:
            return self._reply(message)

        return app

    def _reply(self, message: Message) -> Message:
        answer = self.answer(message.metadata.message_type, message.content)
        return Message(answer, reply_to=message)


def main() -> None:
    """Read the command line and run one of the two programs."""
    parser = argparse.ArgumentParser(description=__doc__)
    programs = parser.add_subparsers(dest="program", required=True)
    server = programs.add_parser("server")
    server.add_argument("address")
    server.add_argument("num_sites", type=int)
    server.add_argument("num_rounds", type=int)
    server.add_argument("dim", type=int)
    server.add_argument("folder", type=Path)
    client = programs.add_parser("client")
    server.add_argument("--on-disk", action="store_true", help="keep updates on the disk")
    server.add_argument("--federation", type=Path, help="with TLS and enrolled keys")
    client.add_argument("address")
    client.add_argument("sites", type=int, nargs="+", help="their numbers; a thread each")
    client.add_argument("--dim", type=int, required=True)
    options = parser.parse_args()

    configure_logging(0)
    keep_freed_memory()
    torch.set_num_threads(1)
    if options.program == "server":
        if options.on_disk:
            return_freed_memory()
        serve(
            options.address,
            options.num_sites,
            options.num_rounds,
            options.dim,
            options.folder,
            on_disk=options.on_disk,
            federation=options.federation,
        )
        return
    agents = [
        Agent(
            lambda: SiteLink(options.address),
            AddingSite(site, options.dim, wire.KnownStudies()).app(),
            address=options.address,
            until=Until(give_up_seconds=60),
        )
        for site in options.sites
    ]
    threads = [threading.Thread(target=agent.run) for agent in agents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
