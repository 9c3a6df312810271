"""Stock Flower of the installed version: SuperLink, SuperNodes, `flwr run`, FedAvg."""

import json
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.version import Version

from erosion_common.support.network import LOOPBACK, free_ports
from experiments.benchmarks.harness import BenchmarkError, Processes, Rounds, read_rounds

APP = Path(__file__).with_name("stock_app.py")
CONNECTION = "benchmark"  # the SuperLink's name in Flower's own settings
ASK_SECONDS = 20.0  # `flwr list` costs a second of processor time, so it is not asked often

PYPROJECT = """\
[project]
name = "benchmark-stock"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "benchmark"

[tool.flwr.app.components]
serverapp = "stock_app:server_app"
clientapp = "stock_app:client_app"

[tool.flwr.app.config]
num-sites = {num_sites}
num-rounds = {num_rounds}
dim = {dim}
import-torch = {import_torch}
clock = "{clock}"
"""

SETTINGS = """\
[superlink]
default = "{name}"

[superlink.{name}]
address = "{address}"
insecure = true
"""


def measure(num_sites: int, num_rounds: int, dim: int, *, import_torch: bool = False) -> Rounds:
    """Run `num_rounds` rounds of a `dim`-float model with stock Flower on loopback.

    With `import_torch` the ClientApp imports torch, as every ClientApp that trains does. The
    updates are the same with and without.
    """
    with Processes() as processes:
        clock = processes.folder / "rounds.jsonl"
        control = start_deployment(processes, num_sites)
        app = processes.folder / "app"
        app.mkdir()
        shutil.copy(APP, app)
        pyproject = PYPROJECT.format(
            num_sites=num_sites,
            num_rounds=num_rounds,
            dim=dim,
            import_torch=str(import_torch).lower(),
            clock=clock,
        )
        (app / "pyproject.toml").write_text(pyproject, encoding="utf-8")
        run_app(
            processes,
            app,
            control,
            is_done=lambda: clock.exists() and '"shift"' in clock.read_text(encoding="utf-8"),
        )
        return read_rounds(clock, num_sites, num_rounds)


def run_app(processes: Processes, app: Path, control: int, *, is_done: Callable[[], bool]) -> None:
    """`flwr run`, to the run's end; `is_done` where the app has done its work.

    Raises BenchmarkError where the run fails.
    """
    settings = SETTINGS.format(name=CONNECTION, address=f"{LOOPBACK}:{control}")
    (processes.folder / "config.toml").write_text(settings, encoding="utf-8")
    run = _flwr(processes, "run", str(app), CONNECTION)
    _wait_for_run(processes, int(run["run-id"]), is_done)


def start_deployment(
    processes: Processes,
    num_sites: int,
    node_config: str = "site={site}",
    env: Mapping[str, str] | None = None,
) -> int:
    """Start the SuperLink and one SuperNode per site; return the Control API's port.

    Until flwr 1.40 the SuperLink has a gRPC port for each of its interfaces, later one for all.
    """
    given = dict(env or {})
    fleet, control, appio, *site_ports = free_ports(3 + num_sites)
    if has_one_port := _has_one_port():
        control = appio = fleet
    start_superlink(processes, fleet, control, appio, given)
    for site, port in enumerate(site_ports):
        processes.start(
            "flower-supernode",
            [
                *(_program("flower-supernode"), "--insecure"),
                *("--superlink", f"{LOOPBACK}:{fleet}"),
                *(
                    ("--host", LOOPBACK, "--port", str(port))
                    if has_one_port
                    else ("--clientappio-api-address", f"{LOOPBACK}:{port}")
                ),
                *("--node-config", node_config.format(site=site)),
            ],
            env={**given, "FLWR_HOME": str(processes.folder / f"site-{site}")},
        )
    processes.wait_for_ports(site_ports)
    return control


def start_superlink(
    processes: Processes, fleet: int, control: int, appio: int, env: Mapping[str, str], *more: str
) -> None:
    """Start it with these ports, and wait for it."""
    if _has_one_port():
        addresses = ["--host", LOOPBACK, "--port", str(control)]
        fleet = appio = control
    else:
        addresses = [
            *("--control-api-address", f"{LOOPBACK}:{control}"),
            *("--serverappio-api-address", f"{LOOPBACK}:{appio}"),
        ]
        if "--simulation" not in more:
            addresses += ["--fleet-api-address", f"{LOOPBACK}:{fleet}"]
    command: list[str | Path] = [_program("flower-superlink"), "--insecure", *more]
    switch = "--disable-runtime-dependency-installation"
    processes.start("flower-superlink", [*command, switch, *addresses], env=env)
    processes.wait_for_ports(
        [control, appio] if "--simulation" in more else [fleet, control, appio]
    )


def _has_one_port() -> bool:
    return Version(metadata.version("flwr")) >= Version("1.41")


def _wait_for_run(processes: Processes, run_id: int, is_done: Callable[[], bool]) -> None:
    """Wait until Flower lists the run as finished and completed."""
    asked = time.monotonic()
    while True:
        if is_done() or time.monotonic() - asked > ASK_SECONDS:
            listed = _flwr(processes, "list", CONNECTION, "--run-id", str(run_id))["runs"][0]
            asked = time.monotonic()
            if listed["status"].startswith("finished"):
                break
        processes.pause("the run to finish", seconds=0.2)
    if listed["status"] != "finished:completed":
        raise BenchmarkError(f"stock Flower's run ended as {listed['status']}")


def _flwr(processes: Processes, *arguments: str) -> dict[str, Any]:
    """Run a `flwr` command and read its JSON answer."""
    text = processes.output_of("flwr", [_program("flwr"), *arguments, "--format", "json"])
    answer: dict[str, Any] = json.loads(text)
    if not answer.get("success"):
        raise BenchmarkError(f"flwr {arguments[0]} was refused: {text}")
    return answer


def _program(name: str) -> Path:
    """Return a console script of the environment that this Python belongs to."""
    return Path(sys.executable).with_name(name)
