"""A rogue coordinator of sealed rounds against real sites: what it tells some and not others."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from erosion_common.algorithms.base import TRAIN
from erosion_common.errors import RunError
from erosion_common.protocol.messages import Scaling, StepResult, TrainRequest
from tests.support.sealed_study import ARM, Line, hospitals, run_in, sealed_study

VICTIM = "bob"


def vanishing(request: TrainRequest) -> TrainRequest:
    """A scaling by which hardly anything is left of the patients' values."""
    return replace(request, scaling=Scaling(mean=(0.0,) * 10, deviation=(1e6,) * 10))


def from_elsewhere(request: TrainRequest) -> TrainRequest:
    """Parameters at which everybody's gradient is flat."""
    assert request.parameters is not None
    return replace(request, sent=torch.full_like(request.parameters, 50.0))


def pulled(request: TrainRequest) -> TrainRequest:
    """A tensor beside the parameters, which a method might train towards."""
    return replace(request, enclosed={"centre": torch.zeros(22)})


@pytest.mark.parametrize("change", [vanishing, from_elsewhere, pulled])
def test_a_sum_is_of_updates_that_were_trained_from_the_same(
    tmp_path: Path, change: Callable[[TrainRequest], TrainRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the others' updates could be made to vanish, and the sum were the victim's alone."""
    # A rogue does not leave hospitals out whose signatures do not fit together.
    monkeypatch.setattr("tests.support.sealed_study.enrolled", lambda _known: {})

    def tell(name: str, request: TrainRequest) -> TrainRequest:
        is_other = name not in (VICTIM, request.study.user)
        return change(request) if is_other and request.step == TRAIN else request

    study = sealed_study(scaling="user")
    line = Line(study, hospitals(tmp_path), tamper=tell)
    with pytest.raises(RunError, match=r"The keys of \w+ in the roster are not signed"):
        run_in(tmp_path, line)
    answered = [reply.content for _, reply in line.replies]
    assert not [a for a in answered if isinstance(a, StepResult)], "an answer to a leg after it"


def test_the_same_study_told_alike_to_everybody_runs(tmp_path: Path) -> None:
    outcome, _ = run_in(tmp_path, Line(sealed_study(scaling="user"), hospitals(tmp_path)))
    assert {record.outcome for record in outcome.records[ARM]} == {"done"}
