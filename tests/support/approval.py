"""A small study, a site and a request, for tests of what a hospital approves."""

from pathlib import Path

import torch

from erosion_client.consent.approvals import decide, entry_of
from erosion_client.records.records import Records
from erosion_client.site_file import Site
from erosion_common.protocol.messages import TrainRequest
from erosion_common.study.study import Study

STUDY = {
    "name": "small",
    "user": "a",
    "hospitals": ["a", "b"],
    "rounds": 3,
    "task": {"kind": "tabular", "target": "y", "classes": ["no", "yes"], "features": ["x1", "x2"]},
    "model": {"name": "logistic"},
    "training": {"steps": 2, "batch_size": 4, "learning_rate": 0.1},
    "arms": {"weight_erosion": {}, "local": {}},
}


def study(**changes: object) -> Study:
    return Study.model_validate({**STUDY, **changes})


def site(tmp_path: Path, **changes: object) -> Site:
    values = {
        "name": "b",
        "data": {"path": str(tmp_path / "data.csv")},
        "coordinator": {"address": "127.0.0.1:1"},
        "compute": {"state": str(tmp_path / "state")},
        **changes,
    }
    return Site.model_validate(values)


def request(of: Study, number: int = 1, value: float = 0.0, run: str = "r1") -> TrainRequest:
    return TrainRequest(
        study=of,
        arm="local",
        round=number,
        sent=torch.full((3,), value),
        scaling=None,
        run=run,
    )


def approve(records: Records, of: Study) -> None:
    decide(records, entry_of(of, records), approve=True, by="somebody")
