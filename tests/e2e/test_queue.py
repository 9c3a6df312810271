"""`erosion server --queue`: studies in turn, over one line."""

import json
from pathlib import Path

import pytest

from erosion_common.program.command_line import main
from erosion_common.study.study import Study
from erosion_common.support.network import free_address
from erosion_server.run.run_folder import write_study
from tests.support.enrolled import make_federation, unpack_kit
from tests.support.federation import small_study, write_site
from tests.support.forked import Forked

KEYS = """[coordinator]
root_certificate = "ca.crt"
certificate = "node.crt"
private_key = "node.key"
"""


def put(queue: Path, file: str, study: Study) -> None:
    queue.mkdir(exist_ok=True)
    write_study(queue / file, study)


def test_a_site_that_is_to_end_with_its_study_waits_for_it(tmp_path: Path) -> None:
    """Real programs over TLS; carol is in the second study alone."""
    queue, address, names = tmp_path / "queue", free_address(), ("alice", "bob", "carol")
    queue.mkdir()
    federation = make_federation(tmp_path / "federation", *names)
    where = ["--address", address, "--runs", str(tmp_path / "runs")]
    serve = ["server", "--queue", str(queue), "--federation", str(federation.path), *where]
    programs = {"": Forked("", serve, tmp_path / "server.log")}
    try:
        for name in names:
            unpack_kit(federation, name, tmp_path)
            path = write_site(tmp_path, name, address)
            path.write_text(path.read_text().replace("[coordinator]\n", KEYS))
            until = ["--until-study-ends"] if name == "carol" else []
            log = tmp_path / f"{name}.log"
            programs[name] = Forked(name, ["client", str(path), *until], log)
        carol = programs["carol"]
        carol.wait_for("connected to the coordinator")
        programs[""].wait_until((queue / "status.json").exists, "status of the queue")
        assert main(["status", str(queue)]) == 0  # between two studies, too, and without any
        quick = {"rounds": 2, "arms": {"fedavg": {}}}
        put(queue, "1.toml", small_study(name="one", hospitals=["alice", "bob"], **quick))
        put(queue, "2.toml", small_study(name="two", **quick))
        assert carol.wait() == 0, carol.text()
        assert carol.text().count("the study has ended") == 1  # of the one that names it
        assert len(list((tmp_path / "runs").glob("*/report.html"))) == 2
    finally:
        for program in programs.values():
            program.close()


OLD, NEW = ("7.1.0", 1), ("7.2.0", 2)


@pytest.mark.parametrize(("coordinator", "before", "after"), [(NEW, OLD, NEW), (OLD, OLD, NEW)])
def test_hospitals_upgrade_one_after_another_in_the_middle_of_a_queue(
    tmp_path: Path, coordinator: tuple[str, int], before: tuple[str, int], after: tuple[str, int]
) -> None:
    queue, address, names = tmp_path / "queue", free_address(), ("alice", "bob", "carol")
    for number, name in enumerate(("one", "two", "three", "four"), start=1):
        study = small_study(
            name=name, rounds=3, arms={"fedavg": {}}, federation={"quorum": len(names)}
        )
        put(queue, f"{number}.toml", study)  # it waits for a hospital that is being upgraded
    options = ["--insecure", "--address", address, "--runs", str(tmp_path / "runs")]
    serve = ["server", "--queue", str(queue), *options, "--until-empty"]
    server = Forked("coordinator", serve, tmp_path / "server.log", coordinator)

    def begin(name: str, version: tuple[str, int]) -> Forked:
        return Forked(name, ["client", str(files[name])], tmp_path / f"{name}.log", version)

    files = {name: write_site(tmp_path, name, address) for name in names}
    sites = {name: begin(name, before) for name in names}
    try:
        for number, name in enumerate(names, start=1):
            done = queue / "done" / f"{number}.toml"
            server.wait_until(done.exists, f"study {number}")
            sites[name].close()
            sites[name] = begin(name, after)
        assert server.wait() == 0, server.text()
    finally:
        for program in (server, *sites.values()):
            program.close()
    results = [json.loads(path.read_text()) for path in tmp_path.glob("runs/*/result.json")]
    assert len(results) == 4
    for result in results:
        assert set(result["arms"]["fedavg"]["weights"]) == set(names)
    for name in names:
        said = (tmp_path / f"{name}.log").read_text()
        assert f"connected to the coordinator at {address}, erosion {coordinator[0]}" in said
