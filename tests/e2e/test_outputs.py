"""Outputs beside a real run: whatever they do, the run is the same."""

import json
from pathlib import Path
from typing import Any

from erosion.server.output.background import InBackground
from erosion.server.output.events import RunEvent
from erosion.server.output.observer import Observer
from tests.support.federation import Federation, small_study

CLOCK = {
    *("seconds", "site_seconds", "seconds_per_round", "started", "command", "peak_megabytes"),
    "bytes_received",  # of a message that says the site's seconds, in more or fewer digits
}


class FailsAlways:
    """Raises what a failed web request raises, whatever it is told."""

    def __init__(self) -> None:
        self.num_calls = 0

    def notify(self, event: RunEvent) -> None:
        self.num_calls += 1
        raise ConnectionError("no route to host")

    def close(self) -> None:
        raise ConnectionError("no route to host")


def without_clock(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_clock(item) for key, item in value.items() if key not in CLOCK}
    return [without_clock(item) for item in value] if isinstance(value, list) else value


def run(folder: Path, outputs: dict[str, Observer]) -> dict[str, Any]:
    """What a run leaves, but for what the clock says."""
    folder.mkdir()
    with Federation(small_study(rounds=3, arms=["fedavg"]), folder) as federation:
        federation.outputs = {**outputs, **federation.outputs}
        for name in federation.study.hospitals:
            federation.start_site(name)
        federation.start()
        federation.finish()
        left = federation.run_folder
        lines = [json.loads(line) for line in left.journal.read_text().splitlines()]
        return {
            "journal": without_clock(lines),
            "result": without_clock(json.loads(left.result.read_text())),
            "model": left.model.read_bytes(),
            "dropped": set(json.loads(left.status.read_text()).get("outputs_dropped", {})),
        }


def test_outputs_that_always_fail_leave_journal_result_and_model_as_they_are(
    tmp_path: Path,
) -> None:
    failing = FailsAlways()
    outputs: dict[str, Observer] = {"bad": failing, "worse": InBackground(FailsAlways())}
    disturbed = run(tmp_path / "disturbed", outputs)
    assert failing.num_calls == 1
    assert disturbed.pop("dropped") == {"bad", "worse"}
    quiet = run(tmp_path / "quiet", {})
    assert quiet.pop("dropped") == set()
    assert disturbed == quiet
    assert len(quiet["journal"]) == 3
