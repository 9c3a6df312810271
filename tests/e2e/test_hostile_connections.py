"""A hospital joins while hundreds of hostile connections stand, of every kind at once.

`python -m experiments.hostile_load` does the same with thousands, and measures.
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from erosion.client.connection.credentials import credentials_for
from erosion.client.site_file import load_site
from erosion.experiments.hostile_load.__main__ import MODULE
from erosion.experiments.hostile_load.attackers import BY_A_SITE, BY_STRANGERS
from erosion.server.link import Link
from erosion.server.link.open_link import make_link
from tests.support.enrolled import make_federation, unpack_kit
from tests.support.federation import small_study
from tests.support.patience import PATIENCE

CONNECTIONS = 300


@pytest.fixture
def link(tmp_path: Path) -> Iterator[Link]:
    keys = make_federation(tmp_path / "federation", "alice", "bob", "mallory")
    for hospital in ("bob", "mallory"):
        unpack_kit(keys, hospital, tmp_path)
    link = make_link(small_study(), "127.0.0.1:0", keys)
    link.start()
    yield link
    link.stop()


@pytest.mark.parametrize("kinds", [[*BY_STRANGERS], [*BY_A_SITE]], ids=["strangers", "a site"])
def test_a_hospital_joins_in_spite_of(link: Link, tmp_path: Path, kinds: list[str]) -> None:
    files = [str(tmp_path / "mallory" / name) for name in ("node.crt", "node.key")]
    each = str(CONNECTIONS // len(kinds))
    attacks = [
        subprocess.Popen(
            [sys.executable, "-m", MODULE, kind, each, link.address, *files], stdin=subprocess.PIPE
        )
        for kind in kinds
    ]
    try:
        time.sleep(3)  # for the connections to stand; if they do not yet, it is only easier
        coordinator = load_site(tmp_path / "bob" / "site.toml").coordinator
        line = credentials_for(coordinator.model_copy(update={"address": link.address}))
        with line.connect() as connection:
            end = time.monotonic() + PATIENCE
            while [link.hospital_of(node) for node in link.grid.get_node_ids()] != ["bob"]:
                assert time.monotonic() < end
                time.sleep(0.02)
            assert connection.receive(1.0) is None  # it stands
        assert [attack.poll() for attack in attacks] == [None] * len(kinds)
    finally:
        for attack in attacks:
            attack.kill()
            attack.wait(30)
            if attack.stdin is not None:
                attack.stdin.close()
