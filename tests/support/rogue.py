"""A coordinator that asks whatever it likes of one real site, and that site as a program."""

import os
import resource
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Message, RecordDict
from numpy.typing import NDArray

from erosion_common.protocol import wire
from erosion_common.protocol.flower import NODE_UNAVAILABLE, read_error
from erosion_common.protocol.messages import DescribeReply, TrainRequest, TrainResult
from erosion_common.study.study import Study
from erosion_common.support.process import peak_megabytes
from erosion_server.enrolment.federation_folder import FederationFolder
from erosion_server.link import Link
from erosion_server.link.link import make_link
from erosion_server.link.site_session import SiteSession
from tests.support import programs
from tests.support.enrolled import make_federation, unpack_kit
from tests.support.patience import PATIENCE, wait_until
from tests.support.processes import start

NUM_PATIENTS = 60


def patients(seed: int = 5) -> NDArray[np.float64]:
    """The victims: (60, 2) values and (60,) outcomes as a last column."""
    draws = np.random.default_rng(seed)
    values = np.round(draws.normal(size=(NUM_PATIENTS, 2)) + 1, 4)
    ill = values @ [1.0, -0.5] + draws.normal(size=NUM_PATIENTS) * 0.5 > 0.5
    return np.column_stack([values, ill])


def write_patients(path: Path, rows: NDArray[np.float64]) -> None:
    lines = [f"{age:.4f},{dose:.4f},{'yes' if ill else 'no'}" for age, dose, ill in rows]
    path.write_text("\n".join(["age,dose,ill", *lines]) + "\n")


class RealSite:
    """`erosion client` as a process, whose site approves by rule whatever its limits allow."""

    def __init__(self, parent: Path, link: Link, keys: FederationFolder) -> None:
        """Unpack bob's kit into `parent`/bob; `link` is the coordinator's, by TLS."""
        self.folder = folder = unpack_kit(keys, "bob", parent)
        self.file, self.output = folder / "site.toml", folder / "output.txt"
        write_patients(folder / "data.csv", patients())
        self.file.write_text(
            f'name = "bob"\n[data]\npath = "data.csv"\n[coordinator]\naddress = "{link.address}"\n'
            'root_certificate = "ca.crt"\ncertificate = "node.crt"\nprivate_key = "node.key"\n'
            '[approval]\nautomatic = "within_limits"\n'
        )
        self._process: BaseProcess | None = None

    def start(self) -> None:
        self.output.touch()
        self._process = start(programs.erosion, str(self.output), "client", str(self.file), "-v")

    def stop(self) -> None:
        if self._process is not None:
            if self._process.is_alive():
                os.kill(self._pid, signal.SIGINT)
            self._end()

    def kill(self) -> None:
        """As a machine that loses its power."""
        os.kill(self._pid, signal.SIGKILL)
        self._end()

    def _end(self) -> None:
        assert self._process is not None
        self._process.join(PATIENCE)
        assert not self._process.is_alive()

    @property
    def _pid(self) -> int:
        assert self._process is not None
        assert self._process.pid is not None
        return self._process.pid

    def limit_files(self, num_bytes: int) -> None:
        """No file can grow beyond this, as on a disk that is full; -1: any."""
        _, hard = resource.prlimit(self._pid, resource.RLIMIT_FSIZE)
        resource.prlimit(self._pid, resource.RLIMIT_FSIZE, (num_bytes, hard))

    @property
    def state(self) -> Path:
        return self.folder / "state" / "bob"

    @property
    def lives(self) -> bool:
        return self._process is not None and self._process.is_alive()

    @property
    def megabytes(self) -> float:
        return peak_megabytes(self._pid) or 0.0

    @property
    def log(self) -> Path:
        return self.folder / "records" / "bob" / "sent.jsonl"

    @property
    def logged(self) -> list[str]:
        """The lines of its log: none before its first answer."""
        return self.log.read_text().splitlines() if self.log.exists() else []


class Rogue:
    """Asks the one site that is connected."""

    def __init__(self, link: Link, site: RealSite) -> None:
        self.link, self.grid, self.site = link, link.grid, site

    def ask(self, content: RecordDict, kind: str) -> Message:
        """What it answers; a site whose line was ended is waited for, and asked again."""
        for _ in range(5):
            node = self.node()
            message = Message(content, node, kind, ttl=PATIENCE)
            replies = list(self.grid.send_and_receive([message], timeout=PATIENCE))
            gone = [r for r in replies if r.has_error() and r.error.code == NODE_UNAVAILABLE]
            if replies and not gone:
                return replies[0]
        raise AssertionError("the site does not stay connected")

    def node(self) -> int:
        wait_until(lambda: self.grid.get_node_ids() or not self.site.lives)
        assert self.site.lives, self.site.output.read_text()[-2000:]
        return self.grid.get_node_ids()[0]

    def why_not(self, content: RecordDict, kind: str) -> str:
        """The words of its error; empty where it answers."""
        reply = self.ask(content, kind)
        return read_error(reply.error).reason if reply.has_error() else ""

    def describe(self, study: Study) -> DescribeReply | str:
        reply = self.ask(wire.encode_describe(study), wire.DESCRIBE)
        if reply.has_error():
            return read_error(reply.error).reason
        return wire.decode_header(reply.content, DescribeReply)

    def train(self, request: TrainRequest) -> TrainResult | str:
        reply = self.ask(wire.Encoder().encode(request), wire.train_type(request.step))
        if reply.has_error():
            return read_error(reply.error).reason
        return wire.decode_train_result(reply.content)

    def send_and_forget(self, request: TrainRequest) -> None:
        """Ask for training, whether or not an answer comes."""
        content, kind = wire.Encoder().encode(request), wire.train_type(request.step)
        self.grid.push_messages([Message(content, self.node(), kind, ttl=PATIENCE)])

    def send(self, frames: Sequence[bytes]) -> None:
        """Frames as they are, whatever the protocol says."""

        def say(session: SiteSession) -> None:
            for frame in frames:
                session._say(frame)

        self.do(say)

    def do(self, act: Callable[[SiteSession], Any]) -> None:
        node = self.node()
        number = self.grid.visits().get(node, (0, 0))[0]
        self.link._sessions.call(node, number, act)

    def line_ends(self, frames: Sequence[bytes]) -> None:
        """These frames make the site leave, and come back."""
        node = self.node()
        before = self.grid.visits()
        self.send(frames)
        wait_until(lambda: node not in self.grid.get_node_ids() or self.grid.visits() != before)
        self.node()


@contextmanager
def rogue_coordinator(folder: Path, prepare: Callable[[RealSite], None]) -> Iterator[Rogue]:
    """An enrolled site and its coordinator, who talk over TLS; `prepare` may change its files."""
    keys = make_federation(folder / "federation", "bob")
    link = make_link((), "127.0.0.1:0", keys)
    link.start()
    try:
        site = RealSite(folder, link, keys)
        prepare(site)
        site.start()
        try:
            yield Rogue(link, site)
        finally:
            site.stop()
    finally:
        link.stop()
