"""The slow line carries every byte, in order, both ways; and the tables of what it showed."""

import json
import socket
import threading
from pathlib import Path

from erosion_common.compression.codec import KINDS
from experiments.compression import MARK, Cell, table
from experiments.compression_seeds import MARK as SEEDS_MARK
from experiments.compression_seeds import Run, read
from experiments.compression_seeds import table as table_of_seeds
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


def test_a_row_says_what_was_measured() -> None:
    cell = Cell("mnist_cnn", "int8", 30, 2.904, 0.8211, 0.9224, 0.2331)
    assert table([cell]).splitlines()[-1] == (
        "| mnist_cnn | int8 | 30 | 2.90 | 0.82 | 0.922 | 0.233 |"
    )


def test_differences_are_taken_at_the_same_seed() -> None:
    runs = [
        Run("resnet18", kind, seed, 0.9 + 0.02 * seed + (0.01 if kind == "int8" else 0.0), 0.25)
        for kind in KINDS
        for seed in (0, 1)
    ]
    rows = table_of_seeds(runs).splitlines()
    assert "| resnet18 | none | 2 | 0.910 ± 0.010 |" in rows[2]
    assert "| resnet18 | int8 | 2 | 0.920 ± 0.010 | +0.010 ± 0.000 |" in rows[-1]


def test_the_pages_tables_are_those_of_the_runs() -> None:
    results, page = ROOT / "experiments" / "results", (ROOT / "docs" / "compression.md").read_text()
    cells = json.loads((results / "compression.json").read_text())["cells"]
    assert f"{MARK}\n{table([Cell(**cell) for cell in cells])}\n{MARK}" in page
    runs = read(results / "compression_seeds.json")
    assert f"{SEEDS_MARK}\n{table_of_seeds(runs)}\n{SEEDS_MARK}" in page
