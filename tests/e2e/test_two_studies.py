"""Two studies at one coordinator at the same time: each ends as it does alone."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from flwr.app import Message, RecordDict

from erosion_client.connection.site_link import SiteLink
from erosion_client.site_file import load_site
from erosion_client.training.hospital import Hospital
from erosion_common.support.network import free_address
from erosion_server.link import Link
from erosion_server.run.journal import read_journal
from erosion_server.run.run_folder import RunFolder, write_study
from tests.support.federation import simulated_alike, small_study, write_site
from tests.support.forked import Forked
from tests.support.patience import PATIENCE, wait_until

SLOW = {"steps": 60, "batch_size": 8, "learning_rate": 0.1}
FIRST = small_study(  # scaffold keeps state at the sites
    name="first", rounds=12, arms={"weight_erosion": {}, "scaffold": {}}, training=SLOW
)
SECOND = small_study(
    name="second",
    user="dave",
    hospitals=["bob", "carol", "dave"],
    seed=7,
    rounds=12,
    arms={"fedavg": {}, "fedlin": {"own_parameters": ["output_bias"]}},
    training=SLOW,
)
STUDIES = (FIRST, SECOND)


@contextmanager
def running(*programs: Forked) -> Iterator[None]:
    try:
        yield
    finally:
        for program in programs:
            program.close()


def test_two_studies_killed_together_and_resumed_each_equal_their_simulation(
    tmp_path: Path,
) -> None:
    address, files = free_address(), []
    for study in STUDIES:
        files.append(tmp_path / f"{study.name}.toml")
        write_study(files[-1], study)
    options = ["--insecure", "--address", address, "--updates", "disk"]
    runs = tmp_path / "runs"

    def coordinator(*arguments: str) -> Forked:
        return Forked("server", ["server", *arguments, *options], tmp_path / "server.log")

    names = sorted({*FIRST.hospitals, *SECOND.hospitals})
    site_files = {name: write_site(tmp_path, name, address) for name in names}
    sites = {
        name: Forked(name, ["client", str(file), "--until-study-ends"], tmp_path / f"{name}.log")
        for name, file in site_files.items()
    }

    def folders() -> list[RunFolder]:
        found = {path.name.rpartition("-")[2]: path for path in runs.glob("*")}
        return [RunFolder(found[study.name]) for study in STUDIES]

    def rounds() -> list[int]:
        return [len(f.journal.read_bytes().splitlines()) for f in folders()]

    killed = coordinator(*map(str, files), "--runs", str(runs))
    with running(killed, *sites.values()):
        killed.wait_until(
            lambda: len(list(runs.glob("*/rounds.jsonl"))) == 2 and min(rounds()) > 2, "rounds"
        )
        killed.kill()
        assert not any(folder.has_ended for folder in folders())
        resumed = coordinator(*(f"--resume={folder.path}" for folder in folders()))
        with running(resumed):
            assert resumed.wait() == 0, resumed.text()
            said = resumed.lines()
        for name, site in sites.items():
            assert site.wait() == 0, (name, site.text())  # each heard of its last study's end
    for study, folder in zip(STUDIES, folders(), strict=True):
        assert any(line.startswith(f"{study.name}: ") for line in said)
        assert json.loads(folder.status.read_text())["phase"] == "finished"
        assert not folder.spool.exists()
        hospitals = {name: Hospital(load_site(site_files[name])) for name in study.hospitals}
        assert {line["outcome"] for line in read_journal(folder.journal)} == {"done"}
        simulated_alike(study, folder, hospitals)


def test_a_closed_channel_keeps_nothing_of_its_requests_and_its_site_stays() -> None:
    link = Link("127.0.0.1:0")
    link.start()
    try:
        with SiteLink(link.address) as site:
            wait_until(link.grid.get_node_ids)
            (node,) = link.grid.get_node_ids()
            first, second = link.open(), link.open()
            for channel in (first, second):
                assert channel.push_messages([Message(RecordDict(), node, "train")])
            requests = [site.receive(PATIENCE), site.receive(PATIENCE)]
            assert (first.unanswered(), second.unanswered()) == ({node}, {node})
            first.close()
            assert (first.unanswered(), second.unanswered()) == (set(), {node})
            for request in requests:
                assert request is not None
                site.reply(request, Message(RecordDict(), reply_to=request))
            wait_until(lambda: not second.unanswered())
            assert link.grid.get_node_ids() == [node]
    finally:
        link.stop()


def test_an_interrupt_ends_the_studies_that_wait() -> None:
    link = Link("127.0.0.1:0")
    channel = link.open()
    link.interrupt()
    channel.wait_for_news(PATIENCE)
    with pytest.raises(KeyboardInterrupt):
        channel.pull_messages([])
