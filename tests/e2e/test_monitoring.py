"""A real Prometheus scrapes a coordinator and a site, and an alert fires when a hospital goes."""

import json
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from shutil import which
from typing import Any

import pytest
import tomli_w

from erosion.simulation.free_ports import free_address
from tests.support.federation import small_study, write_site
from tests.support.forked import Forked
from tests.support.patience import PATIENCE, wait_until

STUDY = small_study(  # longer than the test
    rounds=15_000, arms={"fedavg": {}}, training={"steps": 50, "batch_size": 8,
    "learning_rate": 0.1},
)  # fmt: skip
FILES = Path(__file__).parents[2] / "docker" / "monitoring"


@contextmanager
def prometheus(folder: Path, *targets: str) -> Iterator[Callable[[str], Any]]:
    """Those of our files, with another pace; returns what asks its interface."""
    address = free_address()
    alerts = (FILES / "alerts.yml").read_text()
    waits = [line for line in alerts.splitlines(keepends=True) if line.strip().startswith("for:")]
    assert waits
    for line in set(waits):
        alerts = alerts.replace(line, "")
    (folder / "alerts.yml").write_text(alerts)
    config = (FILES / "prometheus.yml").read_text()
    (folder / "prometheus.yml").write_text(
        config.replace("15s", "1s").replace('["127.0.0.1:9464"]', json.dumps(targets))
    )
    options = ("--config.file=prometheus.yml", "--storage.tsdb.path=tsdb")
    with (folder / "prometheus.log").open("wb") as log:
        program = subprocess.Popen(
            ["prometheus", *options, f"--web.listen-address={address}"],
            cwd=folder, stdout=log, stderr=log,
        )  # fmt: skip

    def ask(path: str) -> Any:
        try:
            with urllib.request.urlopen(f"http://{address}/api/v1/{path}", timeout=5) as answer:
                return json.load(answer)["data"]
        except OSError:
            return {}

    try:
        yield ask
    finally:
        program.kill()
        program.wait(PATIENCE)


@pytest.mark.skipif(which("prometheus") is None, reason="Debian's prometheus is not installed")
def test_a_prometheus_follows_a_run_and_an_alert_fires_when_a_hospital_goes_away(
    tmp_path: Path,
) -> None:
    address, of_server, of_site = free_address(), free_address(), free_address()
    study = tmp_path / "study.toml"
    study.write_text(tomli_w.dumps(STUDY.model_dump(mode="json", exclude_none=True)))
    text_file = tmp_path / "carol.prom"
    more = {"alice": ["--metrics", of_site], "bob": [], "carol": ["--metrics", str(text_file)]}
    with ExitStack() as stack:

        def start(name: str, *arguments: str) -> Forked:
            program = Forked(name, arguments, tmp_path / f"{name}.log")
            stack.callback(program.close)
            return program

        server = start("server", "server", str(study), "--insecure", "--address", address,
                       "--runs", str(tmp_path / "runs"), "--metrics", of_server)  # fmt: skip
        sites = {
            name: start(name, "client", str(write_site(tmp_path, name, address)), *metrics)
            for name, metrics in more.items()
        }
        ask = stack.enter_context(prometheus(tmp_path, of_server, of_site))

        def series(query: str) -> dict[str, float]:
            found = ask(f"query?query={query}").get("result", ())
            return {
                sample["metric"].get("hospital", ""): float(sample["value"][1]) for sample in found
            }

        def firing() -> set[tuple[str, str]]:
            return {
                (alert["labels"]["alertname"], alert["labels"].get("hospital", ""))
                for alert in ask("alerts").get("alerts", ())
                if alert["state"] == "firing"
            }

        everyone = dict.fromkeys(STUDY.hospitals, 1.0)
        wait_until(lambda: series("erosion_hospital_connected") == everyone)
        wait_until(lambda: series("sum(erosion_rounds_total)").get("", 0) > 3)
        wait_until(lambda: series("erosion_connected") == {"": 1.0})
        rounds = "erosion_budget_used%7Bbudget=%22rounds%22%7D"
        wait_until(lambda: series(rounds).get("", 0) > 0)
        assert series("up{job=%22erosion%22}") == {"": 1.0}
        wait_until(lambda: "erosion_connected" in text_file.read_text())
        assert ("ErosionHospitalAway", "bob") not in firing()
        sites["bob"].kill()
        wait_until(lambda: ("ErosionHospitalAway", "bob") in firing())
        assert ("ErosionHospitalAway", "carol") not in firing()
        server.kill()
        wait_until(lambda: {"ErosionDown", "ErosionSiteNotConnected"} <= {n for n, _ in firing()})
