"""The delivered model at other hospitals, over the network: when the run ends, and later."""

import resource
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from erosion_server.coordination.later_validation import measure_later
from erosion_server.link import Link
from erosion_server.run.result import read_result
from erosion_server.run.run_folder import RunFolder
from tests.support import programs
from tests.support.federation import Federation, small_study, write_site
from tests.support.processes import start


def test_a_deployment_measures_as_a_simulation_does_and_others_may_later(tmp_path: Path) -> None:
    asked_for = {"hospitals": ["dave", "erin"]}
    of = small_study(arms={"fedavg": {}}, validation=asked_for)
    with Federation(of, tmp_path) as federation:
        for name in ("alice", "bob", "dave"):
            federation.start_site(name)
        federation.start()
        federation.observer.wait_for(lambda: ("joined", "dave") in federation.observer.events)
        federation.start_site("carol")  # the first round waits for it
        result = federation.finish()
        simulated = federation.compare_with_simulation(("dave",))
        assert result.validation == dict(simulated.validation)
        assert result.validation["dave"].role == "external"
        assert result.validation["dave"].metrics is not None
        assert result.validation["bob"].role == "trained"
        assert result.validation["bob"].metrics is not None
        assert result.validation["erin"].metrics is None
        folder = federation.run_folder

    sites: list[BaseProcess] = []
    lines: list[str] = []

    def tell(line: str) -> None:
        lines.append(line)
        if line.startswith("Listening on "):
            path = write_site(tmp_path, "erin", line.split()[2])
            sites.append(start(programs.honest, str(path)))

    def ask(*at: str, **more: Any) -> None:
        measure_later(folder, at, lambda _: Link("127.0.0.1:0"), more.get("seconds", 60.0), tell)

    try:
        ask()
    finally:
        for site in sites:
            site.kill()
            site.join(10)
    _nobody_is_asked_where_the_figures_cannot_be_kept(folder)
    later = read_result(folder.result)
    assert later.validation["erin"].metrics is not None
    assert later.validation["dave"] == result.validation["dave"]
    assert later.arms == result.arms
    assert "erin" in (folder.path / "figures" / "validation.csv").read_text()


def _nobody_is_asked_where_the_figures_cannot_be_kept(folder: RunFolder) -> None:
    def no_link(_: object) -> Link:
        raise AssertionError("the sites would be asked")

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        with pytest.raises(OSError, match="large"):
            measure_later(folder, ["frank"], no_link, 1.0, lambda _: None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
