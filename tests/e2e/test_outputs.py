"""Outputs beside a real run: whatever they do, the run is the same."""

import json
from pathlib import Path

import torch

from erosion_common.rounds import checkpoint
from erosion_server.output.events import RunEvent
from erosion_server.output.observers import InBackground, Observer
from erosion_server.run.journal import read_records
from tests.support.federation import Federation, small_study


class FailsAlways:
    """Raises what a failed web request raises, whatever it is told."""

    def __init__(self) -> None:
        self.num_calls = 0

    def notify(self, event: RunEvent) -> None:
        self.num_calls += 1
        raise ConnectionError("no route to host")

    def close(self) -> None:
        raise ConnectionError("no route to host")


def test_outputs_that_always_fail_leave_journal_result_and_model_as_they_are(
    tmp_path: Path,
) -> None:
    failing = FailsAlways()
    outputs: dict[str, Observer] = {"bad": failing, "worse": InBackground(FailsAlways())}
    with Federation(small_study(rounds=3, arms=["fedavg"]), tmp_path) as federation:
        federation.outputs = {**outputs, **federation.outputs}
        for name in federation.study.hospitals:
            federation.start_site(name)
        federation.start()
        federation.finish()
        simulated = federation.compare_with_simulation()  # where there are no outputs
        left = federation.run_folder
    assert failing.num_calls == 1
    assert set(json.loads(left.status.read_text())["outputs_dropped"]) == {"bad", "worse"}
    assert read_records(left.journal) == federation.observer.records
    assert len(simulated.records["fedavg"]) == len(federation.observer.records) == 3
    assert torch.allclose(checkpoint.load_model(left.model), simulated.finals["fedavg"].params)
    assert left.has_ended
