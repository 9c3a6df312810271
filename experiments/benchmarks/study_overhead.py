"""Times a round's messages with a large study: 400 features, 64 hospitals, no training.

    python -m experiments.benchmarks.study_overhead --json FILE

Everything that handles messages is in it: requests made and taken apart, the site's look at its
limits and its audit log, replies made and taken apart. The peer is the same with the whole study
in every request, which a site then reads and hashes each time.
"""

import argparse
import tempfile
import time
from functools import cache
from pathlib import Path

import torch
from flwr.app import Message

from erosion.client.audit.audit_log import AuditLog
from erosion.client.site_file import Site
from erosion.client.training.limits import check_study
from erosion.common.protocol import wire
from erosion.common.protocol.messages import Scaling, TrainReply, TrainRequest, TrainResult
from erosion.common.study.study import Study
from erosion.experiments.benchmarks.report_line import ReportLine, report
from erosion.experiments.program import output_file, run_program

FEATURES, HOSPITALS, CLASSES = 400, 64, 2


def large_study() -> Study:
    """A study of many features and hospitals."""
    features = [{"name": f"laboratory_value_{i}", "range": [0, 1000 + i]} for i in range(FEATURES)]
    return Study.model_validate(
        {
            "name": "overhead",
            "user": "hospital-0",
            "hospitals": [f"hospital-{i}" for i in range(HOSPITALS)],
            "rounds": 100,
            "task": {
                "kind": "tabular",
                "target": "y",
                "classes": ["0", "1"],
                "features": features,
            },
            "scaling": "federated",
            "model": {"name": "logistic"},
            "training": {"steps": 1},
            "arms": {"fedavg": {}},
        }
    )


def seconds_per_round(folder: Path, rounds: int, *, whole_study: bool) -> float:
    """The fastest of so many rounds: what is slower was disturbed."""
    study = large_study()
    scaling = Scaling(mean=(0.5,) * FEATURES, deviation=(1.5,) * FEATURES)
    params = torch.zeros(CLASSES * (FEATURES + 1))
    known = [wire.KnownStudies() for _ in range(HOSPITALS)]
    for studies in known:
        wire.decode_describe(wire.encode_describe(study), studies)
    fastest = float("inf")
    with AuditLog(folder) as log:
        for number in range(1, rounds + 1):
            started = time.perf_counter()
            request = TrainRequest(study, "fedavg", number, params, scaling, "run")
            record = wire.encode_train(request, with_study=whole_study)
            wire.num_bytes(record)
            for hospital, studies in enumerate(known):
                asked = Message(record, hospital + 1, wire.TRAIN)
                site_answers(hospital, asked, wire.KnownStudies() if whole_study else studies, log)
            fastest = min(fastest, time.perf_counter() - started)
    return fastest


@cache
def site_of(name: str) -> Site:
    """A site with the limits that a site has by default."""
    address = {"address": "127.0.0.1:1"}
    return Site.model_validate({"name": name, "data": {"path": "none.csv"}, "coordinator": address})


def site_answers(
    hospital: int, asked: Message, studies: wire.KnownStudies, log: AuditLog
) -> TrainResult:
    """What one site does with a request but for the training, and the coordinator's reading."""
    request = wire.decode_train(asked.content, studies)
    name = f"hospital-{hospital}"
    check_study(site_of(name), request.study)
    header = TrainReply(
        hospital=name,
        arm=request.arm,
        round=request.round,
        num_samples=1,
        samples_seen=1,
        seconds=0.0,
    )
    assert request.parameters is not None
    update = torch.full_like(request.parameters, hospital + len(request.study.digest))
    reply = Message(wire.encode_train_result(TrainResult(header, update)), reply_to=asked)
    log.record(asked, reply)
    return wire.decode_train_result(reply.content)


def main() -> None:
    """Measure both, print the line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=output_file, metavar="FILE")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        peer = seconds_per_round(Path(folder, "whole"), options.rounds, whole_study=True)
        ours = seconds_per_round(Path(folder, "digest"), options.rounds, whole_study=False)
    report(
        [ReportLine("study_overhead.whole_study", ours, peer, "s/round")], json_path=options.json
    )


if __name__ == "__main__":
    run_program(main)
