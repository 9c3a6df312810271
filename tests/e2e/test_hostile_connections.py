"""A hospital joins while hundreds of hostile connections stand, of every kind at once.

`python -m experiments.hostile_load` does the same with thousands, and measures.
"""

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc
import pytest
import tomli_w

from erosion_client.connection.credentials import credentials_for
from erosion_client.connection.site_link import SiteLink
from erosion_client.site_file import load_site
from erosion_common.errors import SiteError
from erosion_common.protocol.frames import PATH, Kind
from erosion_common.settings.base import read_toml
from erosion_common.support.network import free_address
from erosion_server.link import Link
from erosion_server.link.link import make_link
from erosion_server.run.run_folder import write_study
from experiments.faults.program import Program
from experiments.hostile_load.__main__ import MODULE
from experiments.hostile_load.attackers import BY_A_SITE, BY_STRANGERS
from tests.support.enrolled import make_federation, unpack_kit
from tests.support.federation import small_study
from tests.support.forked import Forked
from tests.support.patience import PATIENCE, wait_until

CONNECTIONS = 300
BOMB_MEGABYTES = 64  # of blanks; a frame has at most 4 MiB
JSON_LOG = ("--log-format", "json")


@pytest.fixture
def link(tmp_path: Path) -> Iterator[Link]:
    keys = make_federation(tmp_path / "federation", "alice", "bob", "mallory")
    for hospital in ("bob", "mallory"):
        unpack_kit(keys, hospital, tmp_path)
    link = make_link(small_study().hospitals, "127.0.0.1:0", keys)
    link.start()
    yield link
    link.stop()


@contextmanager
def attack(
    kind: str, connections: int, address: str, mallory: Path
) -> Iterator["subprocess.Popen[bytes]"]:
    """Hostile connections, by strangers or with mallory's certificate."""
    files = [str(mallory / name) for name in ("node.crt", "node.key")]
    process = subprocess.Popen(
        [sys.executable, "-m", MODULE, kind, str(connections), address, *files],
        stdin=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE)


@pytest.mark.parametrize("kinds", [[*BY_STRANGERS], [*BY_A_SITE]], ids=["strangers", "a site"])
def test_a_hospital_joins_in_spite_of(link: Link, tmp_path: Path, kinds: list[str]) -> None:
    each = CONNECTIONS // len(kinds)
    with ExitStack() as stack:
        attacks = [
            stack.enter_context(attack(kind, each, link.address, tmp_path / "mallory"))
            for kind in kinds
        ]
        time.sleep(3)  # for the connections to stand; if they do not yet, it is only easier
        coordinator = load_site(tmp_path / "bob" / "site.toml").coordinator
        line = credentials_for(coordinator.model_copy(update={"address": link.address}))
        with line.connect() as connection:
            end = time.monotonic() + PATIENCE
            while [link.hospital_of(node) for node in link.grid.get_node_ids()] != ["bob"]:
                assert time.monotonic() < end
                time.sleep(0.02)
            assert connection.receive(1.0) is None  # it stands
        assert [process.poll() for process in attacks] == [None] * len(kinds)


# What a coordinator's account may open where nobody has raised it; more connections than that come.
FILES, IDLE = 1024, 1000
OWN_GRPC = ("env", "-u", "GRPC_VERBOSITY")  # Flower sets it in the process that runs the tests
A_FEW = ("garbage", "hello", "no-certificate", "headers-only", "rapid-resets")


def test_with_few_files_a_hospital_still_gets_in_and_every_line_of_both_logs_is_json(
    tmp_path: Path,
) -> None:
    """gRPC and asyncio have words of their own for broken connections, and would print them."""
    keys = make_federation(tmp_path / "federation", *small_study().hospitals, "mallory")
    study, address = tmp_path / "study.toml", free_address()
    write_study(study, small_study())
    mallory = unpack_kit(keys, "mallory", tmp_path)
    site = site_file(unpack_kit(keys, "alice", tmp_path), address)
    options = ["--address", address, "--federation", str(keys.path), "--runs", str(tmp_path)]
    with ExitStack() as stack:
        coordinator = Program(
            "coordinator",
            ["server", str(study), *options, *JSON_LOG],
            tmp_path / "coordinator.log",
            within=[*OWN_GRPC, "sh", "-c", f'ulimit -n {FILES} && exec "$0" "$@"'],
        )
        stack.callback(coordinator.close)
        wait_until(lambda: is_open(address))
        stack.enter_context(attack("idle", IDLE, address, mallory))
        for kind in A_FEW:
            stack.enter_context(attack(kind, 10, address, mallory))
        time.sleep(3)  # for the connections to stand; if they do not yet, it is only easier
        alice = Program(
            "alice", ["client", str(site), *JSON_LOG], tmp_path / "alice.log", within=OWN_GRPC
        )
        stack.callback(alice.close)
        alice.wait_for("connected to")
        coordinator.wait_for("TLS was not agreed")
        coordinator.wait_for("mallory")
        assert coordinator.exit_code is None
        coordinator.end()
        alice.wait_for("trying again")
    for program in (coordinator, alice):
        lines = program.text().splitlines()
        assert [line for line in lines if not isinstance(json.loads(line), dict)] == []
        assert 0 < len(lines) < 100, program.text()


def site_file(kit: Path, address: str) -> Path:
    """The kit's own, for a coordinator at `address`."""
    path = kit / "site.toml"
    values = read_toml(path, "site file", SiteError)
    values["coordinator"]["address"] = address
    path.write_text(tomli_w.dumps(values))
    (kit / "patients.csv").write_text("age,dose,ill\n1,2,no\n2,3,yes\n" * 20)
    return path


def is_open(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


def test_a_greeting_that_unpacks_to_far_too_much_is_refused_before_it_has_taken_the_memory(
    tmp_path: Path,
) -> None:
    study, address = tmp_path / "study.toml", free_address()
    write_study(study, small_study())
    options = ["--address", address, "--insecure", "--runs", str(tmp_path)]
    log = tmp_path / "coordinator.log"
    with ExitStack() as stack:
        coordinator = Forked("coordinator", ["server", str(study), *options], log)
        stack.callback(coordinator.close)
        wait_until(lambda: is_open(address))
        assert SiteLink(address).check(seconds=PATIENCE).problem is None
        before = coordinator.peak_megabytes
        channel = grpc.insecure_channel(
            address,
            options=[("grpc.max_send_message_length", -1)],
            compression=grpc.Compression.Gzip,
        )
        stack.enter_context(channel)
        bomb = bytes((Kind.HELLO,)) + b" " * BOMB_MEGABYTES * 10**6

        def is_refused() -> bool:
            with pytest.raises(grpc.RpcError) as refused:
                next(channel.stream_stream(PATH)(iter([bomb])))
            is_too_large = refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            # Under load it is packed for longer than the coordinator waits for a greeting.
            assert is_too_large or refused.value.details() == "it said nothing"
            return is_too_large

        wait_until(is_refused)
        assert SiteLink(address).check(seconds=PATIENCE).problem is None
        assert coordinator.peak_megabytes - before < BOMB_MEGABYTES / 2
