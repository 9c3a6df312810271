"""Our coordinator with sites that do nothing but add a constant: what link and coordinator take.

The coordinator is a process with everything that it does in a real round: screening, aggregation,
the journal, and the checkpoint. The sites are coroutines of other processes, so that even 256 cost
little. They speak the same frames as a real site and make replies with the same code, but have no
patients, records or log. Two programs:

    python -m experiments.benchmarks.bare server ADDRESS SITES ROUNDS DIM FOLDER disk|memory [KEYS]
    python -m experiments.benchmarks.bare sites ADDRESS DIM FIRST END [KITS]
"""

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import torch
from flwr.app import RecordDict

from erosion_client.connection.site_link import OURS
from erosion_common.protocol import wire
from erosion_common.protocol.envelope import (
    Assembly,
    FrameSize,
    MemorySpace,
    data_frames,
    describe,
    read_description,
)
from erosion_common.protocol.frames import PATH, Kind, frame, json_body, json_frame, opened
from erosion_common.protocol.messages import DescribeReply, TrainReply, TrainResult
from erosion_common.rounds.arm import Arm
from erosion_common.rounds.context import RunContext
from erosion_common.rounds.driver import run_arm
from erosion_common.rounds.events import ignore
from erosion_common.rounds.presence import Presence
from erosion_common.rounds.round import first_state
from erosion_common.study.study import Study
from erosion_common.support.logs import configure_logging
from erosion_common.support.network import LOOPBACK, free_ports
from erosion_common.support.process import keep_freed_memory, return_freed_memory
from erosion_server.coordination.folder_store import FolderStore
from erosion_server.coordination.network import NetworkChannel
from erosion_server.coordination.run_study import updates_in
from erosion_server.coordination.study_strategy import StudyStrategy
from erosion_server.enrolment.enrolment import enrol_site, init_federation
from erosion_server.enrolment.federation_folder import Address, FederationFolder
from erosion_server.link.link import make_link
from erosion_server.run.run_folder import RunFolder
from experiments.benchmarks.harness import (
    Processes,
    RoundClock,
    Rounds,
    initial_parameters,
    read_rounds,
    resident_bytes,
    site_constant,
)
from experiments.program import unpack_kit

MODULE = "experiments.benchmarks.bare"
JOIN_SECONDS = 600.0
CONNECTING_AT_ONCE = 16  # TLS handshakes under way


@dataclass(frozen=True, slots=True)
class Coordinator:
    """What the coordinator took."""

    rounds: Rounds
    processor_seconds: float  # of a round, all its threads
    added_bytes: int  # of its memory, at the most, from when all had joined


def measure(num_sites: int, num_rounds: int, dim: int) -> Rounds:
    """Run `num_rounds` rounds of a `dim`-float model, with a process for each site."""
    return run(num_sites, num_rounds, dim, site_processes=num_sites).rounds


def run(
    num_sites: int,
    num_rounds: int,
    dim: int,
    *,
    site_processes: int = 1,
    on_disk: bool = False,
    encrypted: bool = False,
) -> Coordinator:
    """Run the rounds; the sites are shared out among a few processes."""
    (port,) = free_ports(1)
    address = f"{LOOPBACK}:{port}"
    with Processes() as processes:
        folder = processes.folder
        keys = [folder / "federation"] if encrypted else []
        kits = [_enrol(folder / "federation", folder / "kits", num_sites)] if encrypted else []
        place = "disk" if on_disk else "memory"
        server = processes.start_module(
            "server", MODULE, "server", address, num_sites, num_rounds, dim, folder, place, *keys
        )
        processes.wait_for_ports([port])
        for first, end in pairwise(np.linspace(0, num_sites, site_processes + 1).astype(int)):
            processes.start_module("sites", MODULE, "sites", address, dim, first, end, *kits)
        processes.wait_for_exit([server])
        figures = json.loads((folder / "coordinator.json").read_text())
        return Coordinator(read_rounds(folder / "clock.jsonl", num_sites, num_rounds), **figures)


def _enrol(federation: Path, kits: Path, num_sites: int) -> Path:
    """Enrol a federation of `num_sites` sites; return the folder with their unpacked kits."""
    folder = FederationFolder(federation)
    init_federation(folder, Address(hosts=(LOOPBACK,), port=9092))
    for number in range(num_sites):
        unpack_kit(enrol_site(folder, f"site{number}").kit, kits)
    return kits


# -- The coordinator -------------------------------------------------------------------------------


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


def serve(
    address: str,
    num_sites: int,
    num_rounds: int,
    dim: int,
    folder: Path,
    *,
    on_disk: bool,
    federation: Path | None,
) -> None:
    """Run the coordinator to the end of the last round."""
    study = study_of(num_sites, num_rounds)
    keys = None if federation is None else FederationFolder(federation)
    link = make_link(study.hospitals, address, keys)
    link.start()
    grid = link.open(folder / "spool" if on_disk else None)
    channel = NetworkChannel(study, grid, link if link.enrolled_only else None)
    presence = Presence(study, channel, ignore, longest_wait_seconds=JOIN_SECONDS)
    presence.wait_for(study.hospitals, len(study.hospitals))
    before, clock = resident_bytes("VmRSS"), RoundClock(folder / "clock.jsonl")
    algorithm, start = study.arms["fedavg"].build(study.build_context), initial_parameters(dim)
    arm = Arm("fedavg", algorithm, first_state(algorithm, torch.from_numpy(start)), [])
    del start
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
        strategy = StudyStrategy(ctx, channel)
        strategy.grid = grid
        clock.tick()
        worked = time.process_time()
        run_arm(replace(ctx, run_round=strategy.run_round), arm, num_rounds)
        worked = time.process_time() - worked
    figures = {
        "processor_seconds": worked / num_rounds,
        "added_bytes": resident_bytes("VmHWM") - before,
    }
    (folder / "coordinator.json").write_text(json.dumps(figures))
    clock.finish(
        float((arm.state.params - torch.from_numpy(initial_parameters(dim))).double().mean())
    )
    link.stop()


# -- The sites -------------------------------------------------------------------------------------


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
            return wire.encode_header(reply)
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
        return wire.encode_result(TrainResult(header, trained - request.parameters))


async def connect(
    address: str, site: AddingSite, kit: Path | None, turn: asyncio.Semaphore
) -> None:
    """Answer what is asked until the coordinator ends the stream."""
    async with _channel(address, kit) as channel:
        async with turn:
            call = channel.stream_stream(PATH)()
            await call.write(json_frame(Kind.HELLO, OURS.as_json()))
            _, welcome = opened(await call.read())
        size = FrameSize.asked(json_body(welcome).get("frame_bytes"))
        with contextlib.suppress(grpc.RpcError):  # the coordinator has done its rounds
            async for head, content in _requests(call):
                records, buffers = describe(site.answer(head["type"], content))
                await call.write(json_frame(Kind.MESSAGE, {"re": head["id"], "records": records}))
                for data in data_frames(buffers, size):
                    begun = time.monotonic()
                    await call.write(data)
                    size.took(time.monotonic() - begun)


async def _requests(call: Any) -> AsyncIterator[tuple[dict[str, Any], RecordDict]]:
    arriving: Assembly | None = None
    while (received := await call.read()) is not grpc.aio.EOF:
        kind, body = opened(received)
        if kind is Kind.PING:
            await call.write(frame(Kind.PONG))
        elif kind is Kind.MESSAGE:
            head = json_body(body)
            description = read_description(head.pop("records"))
            arriving = Assembly(head, description, MemorySpace(description.num_bytes))
        elif kind is Kind.DATA and arriving is not None:
            arriving.take(body)
        if arriving is not None and arriving.is_whole:
            yield arriving.head, arriving.content()
            arriving = None


def _channel(address: str, kit: Path | None) -> Any:
    options = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    if kit is None:
        return grpc.aio.insecure_channel(address, options=options)
    files = ("ca.crt", "node.key", "node.crt")
    credentials = grpc.ssl_channel_credentials(*((kit / name).read_bytes() for name in files))
    return grpc.aio.secure_channel(address, credentials, options=options)


async def answer_all(address: str, dim: int, first: int, end: int, kits: Path | None) -> None:
    """Run sites `first` to `end` - 1."""
    turn, studies = asyncio.Semaphore(CONNECTING_AT_ONCE), wire.KnownStudies()
    sites = [AddingSite(number, dim, studies) for number in range(first, end)]
    await asyncio.gather(
        *(connect(address, site, kits and kits / site.name, turn) for site in sites)
    )


def main() -> None:
    """Run one of the two programs."""
    configure_logging(0)
    torch.set_num_threads(1)
    program, address, *others = sys.argv[1:]
    keep_freed_memory(large=program == "sites")  # as the two programs do
    if program == "sites":
        dim, first, end, *kits = others
        asyncio.run(
            answer_all(address, int(dim), int(first), int(end), Path(kits[0]) if kits else None)
        )
        return
    num_sites, num_rounds, dim, folder, place, *keys = others
    if place == "disk":
        return_freed_memory()
    serve(
        address,
        int(num_sites),
        int(num_rounds),
        int(dim),
        Path(folder),
        on_disk=place == "disk",
        federation=Path(keys[0]) if keys else None,
    )


if __name__ == "__main__":
    main()
