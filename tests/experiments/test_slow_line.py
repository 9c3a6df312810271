"""The slow line carries every byte, in order, both ways; and the tables of what it showed."""

import socket
import threading
from pathlib import Path

import pytest

from erosion_common.protocol.compression import KINDS
from experiments.compression import MARKS, read, table
from experiments.slow_line import SlowLine
from tests.support.patience import PATIENCE

ROOT = Path(__file__).resolve().parents[2]


def test_a_slow_line_changes_nothing_that_it_carries() -> None:
    sent = bytes(range(256)) * 1000
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def echo() -> None:
            line, _ = listening.accept()
            with line:
                while data := line.recv(2**14):
                    line.sendall(data)

        thread = threading.Thread(target=echo, daemon=True)
        thread.start()
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        with SlowLine(bits_per_second=1e9, delay_seconds=0.01).to(address) as begins:
            host, _, port = begins.rpartition(":")
            with socket.create_connection((host, int(port)), timeout=PATIENCE) as near:
                back = bytearray()
                writer = threading.Thread(target=near.sendall, args=(sent,), daemon=True)
                writer.start()
                while len(back) < len(sent):
                    back += near.recv(2**16)
                assert bytes(back) == sent
                near.shutdown(socket.SHUT_WR)  # its end is carried, too
                assert near.recv(1) == b""
        thread.join(PATIENCE)


def test_a_line_to_nobody_ends_the_call() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        address = f"127.0.0.1:{unused.getsockname()[1]}"
    with SlowLine().to(address) as begins:
        host, _, port = begins.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=PATIENCE) as near:
            assert near.recv(1) == b""


def test_differences_are_taken_at_the_same_seed() -> None:
    runs = [
        {
            "network": "resnet18",
            "compression": kind,
            "seed": seed,
            "accuracy": 0.9 + 0.02 * seed + (0.01 if kind == "int8" else 0.0),
            "log_loss": 0.25,
        }
        for kind in KINDS
        for seed in (0, 1)
    ]
    rows = table("runs", runs).splitlines()
    assert "| resnet18 | none | 2 | 0.910 ± 0.010 |" in rows[2]
    assert "| resnet18 | int8 | 2 | 0.920 ± 0.010 | +0.010 ± 0.000 |" in rows[-1]


@pytest.mark.parametrize(
    ("key", "file"), [("cells", "compression.json"), ("runs", "compression_seeds.json")]
)
def test_the_pages_tables_are_those_of_the_runs(key: str, file: str) -> None:
    page = (ROOT / "docs" / "compression.md").read_text(encoding="utf-8")
    cells = read(key, ROOT / "experiments" / "results" / file)
    assert f"{MARKS[key]}\n{table(key, cells)}\n{MARKS[key]}" in page
