"""What a request is about: of a round, one arm; for final figures, every arm of the study."""

from collections.abc import Mapping

from torch import Tensor

from erosion.client.training.kept_state import Moment, StateKey
from erosion.common.algorithms.base import ArmBase
from erosion.common.errors import Refusal
from erosion.common.protocol.messages import EvaluateRequest, TrainRequest

Request = TrainRequest | EvaluateRequest


def arm_of(request: Request, arm: str) -> ArmBase:
    """The arm's settings; Refusal where the study has none of that name."""
    arms = request.study.arms
    if arm not in arms:
        raise Refusal(f"The request names the arm {arm!r}; the study has {', '.join(arms)}.")
    return arms[arm]


def parameters_of(request: Request, arm: str) -> Tensor | None:
    """Those that came of an arm: (dim,), or None where a step does without."""
    return request.parameters if isinstance(request, TrainRequest) else request.parameters[arm]


def enclosed_of(request: Request, arm: str) -> Mapping[str, Tensor]:
    """What the arm's method sent beside them."""
    if isinstance(request, TrainRequest):
        return request.enclosed
    return request.enclosed.get(arm, {})


def moments_of(request: Request) -> dict[str, Moment]:
    """The arms that a request is about, and in which exchange of each; final figures come last."""
    if isinstance(request, TrainRequest):
        moments = {request.arm: Moment(request.round, request.exchange)}
    else:
        moments = dict.fromkeys(request.parameters, Moment(request.study.rounds + 1))
    return {arm: moment for arm, moment in moments.items() if arm_of(request, arm)}


def state_key_of(request: Request, arm: str) -> StateKey:
    """By what is kept of the arm in this run."""
    return StateKey(request.study.digest, arm, request.run, request.study.whole.digest)
