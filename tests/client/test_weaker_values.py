"""A kit's site file may be weaker than the defaults: the hospital is told of every such value."""

import resource
from pathlib import Path

import pytest

from erosion_client.preflight.check import WEAKER, weaker_values
from erosion_client.site_file import Site
from erosion_common.program.command_line import main

SITE = 'name = "b"\ndata.path = "b.csv"\ncoordinator.address = "127.0.0.1:1"\n'
WEAK = """\
[approval]
automatic = "within_limits"
[compute]
public_order = true
[limits]
min_batch_size = 1
min_local_steps = 1
min_cell = 3
[budget]
rounds = 1000000
"""
KEYS = (
    "approval.automatic",
    "compute.public_order",
    "limits.min_batch_size",
    "limits.min_local_steps",
    "limits.min_cell",
    "budget.rounds",
)


def test_every_limit_says_which_way_it_is_weaker() -> None:
    keys = " ".join(line for lines in WEAKER.values() for line in lines).split()
    every = []
    for table in ("limits", "approval", "budget", "log", "compute", "coordinator"):
        kind = Site.model_fields[table].annotation
        assert kind is not None
        every += [f"{table}.{key}" for key in kind.model_fields]
    assert sorted(keys) == sorted(every)


def test_weaker_values_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "b.csv").write_text("x,y\n1,no\n2,yes\n")
    file = tmp_path / "site.toml"
    file.write_text(SITE + WEAK)
    main(["check", str(file)])
    said = " ".join(capsys.readouterr().out.split())
    for key in KEYS:
        assert f"{key} = " in said
    file.write_text(SITE)
    main(["check", str(file)])
    assert "(by default" not in capsys.readouterr().out


def test_a_file_of_defaults_and_one_that_is_stricter_have_none() -> None:
    values = {"name": "b", "data": {"path": "b.csv"}, "coordinator": {"address": "h:1"}}
    assert not [*weaker_values(Site.model_validate(values))]
    strict = {"min_cell": 20, "epsilon": 1.0, "max_rounds": 5, "largest_share": 0.2}
    assert not [*weaker_values(Site.model_validate({**values, "limits": strict}))]
    proxy = {"address": "h:1", "proxy": "user:secret@p:1"}
    ((key, said),) = weaker_values(Site.model_validate({**values, "coordinator": proxy}))
    assert key == "coordinator.proxy"
    assert "secret" not in said


def test_no_program_leaves_its_memory_on_the_disk(tmp_path: Path) -> None:
    main(["check", str(tmp_path / "none.toml")])
    assert resource.getrlimit(resource.RLIMIT_CORE)[0] == 0
    root = Path(__file__).parents[2]
    for unit in (root / "docker/systemd").glob("*.service"):
        assert "LimitCORE=0" in unit.read_text().splitlines()
    for compose in (root / "docker-compose.yml", *(root / "docker").glob("*.yml")):
        services = compose.read_text()
        assert services.count("ulimits: {core: 0}") == services.count("pids_limit:")
