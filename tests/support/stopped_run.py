"""A made-up run whose first arm stopped in round 4."""

from dataclasses import replace

from tests.support.synthetic_run import Run, make_run

NOTE = "the updates that still have weight fit into no cone of 84 degrees"


def make_stopped_run() -> Run:
    """Its rounds from the fifth on were not played."""
    run = make_run()
    first, *others = run.result.arms
    stopped = [
        replace(record, outcome="stopped", note=NOTE) if record.round == 4 else record
        for record in run.records
        if record.arm == first and record.round <= 4
    ]
    arm = run.result.arms[first].model_copy(update={"rounds": 4, "stopped": NOTE})
    return Run(
        run.study,
        [*stopped, *(record for record in run.records if record.arm in others)],
        run.result.model_copy(update={"arms": {**run.result.arms, first: arm}}),
    )
