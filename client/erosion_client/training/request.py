"""The subject of a request, checks of its tensors, and faults inside installed models."""

import hashlib
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from erosion_client.training.kept_state import Moment, StateKey
from erosion_common.aggregation.vectors import is_finite
from erosion_common.algorithms.base import ArmBase
from erosion_common.errors import ErosionError, Refusal, SiteError
from erosion_common.learning.networks import ModelBase
from erosion_common.protocol.compression import Packed, unpacked
from erosion_common.protocol.messages import EvaluateRequest, TrainRequest
from erosion_common.settings.packages import blamed

Request = TrainRequest | EvaluateRequest


def arm_of(request: Request, arm: str) -> ArmBase:
    """Return the arm's settings; Refusal where the study has none with that name."""
    arms = request.study.arms
    if arm not in arms:
        raise Refusal(f"The request names the arm {arm!r}; the study has {', '.join(arms)}.")
    return arms[arm]


def sent_of(request: Request, arm: str) -> Tensor | Packed | None:
    """Return the arm's parameters, (dim,), as they came; None for a step without."""
    return request.sent if isinstance(request, TrainRequest) else request.parameters[arm]


def enclosed_of(request: Request, arm: str) -> Mapping[str, Tensor]:
    """Return the tensors that the arm's method sent with them."""
    if isinstance(request, TrainRequest):
        return request.enclosed
    return request.enclosed.get(arm, {})


def moments_of(request: Request) -> dict[str, Moment]:
    """Return a request's arms, and the exchange of each; final figures come last."""
    if isinstance(request, TrainRequest):
        moments = {request.arm: Moment(request.round, request.exchange)}
    else:
        moments = dict.fromkeys(request.parameters, Moment(request.study.rounds + 1))
    return {arm: moment for arm, moment in moments.items() if arm_of(request, arm)}


def state_key_of(request: Request, arm: str) -> StateKey:
    """Return the key of the arm's kept state in this run."""
    return StateKey(request.study.digest, arm, request.run, request.study.whole.digest)


def checked_parameters(sent: Tensor | Packed, dim: int) -> Tensor:
    """Return parameters of the study's model, (dim,) float32. Raises Refusal."""
    if isinstance(sent, Packed) and len(sent) != dim:  # unpacked they take four times the memory
        raise Refusal(
            f"The request brings {len(sent)} compressed parameters; the study's model has {dim}."
        )
    parameters = unpacked(sent)
    if parameters.shape != (dim,) or parameters.dtype != torch.float32:
        raise Refusal(
            f"The request brings parameters of shape {tuple(parameters.shape)} and type"
            f" {parameters.dtype}; the study's model has {dim} of torch.float32."
        )
    if not is_finite(parameters):
        raise Refusal("The request brings parameters that are not finite; training diverged.")
    return parameters


MOST_MODELS = 1000  # of one arm in a request: the patients are gone through once for each


def checked_payload(name: str, tensor: Tensor, dim: int | None) -> Tensor:
    """Return a tensor that an algorithm sent. Raises Refusal."""
    if not tensor.dtype.is_floating_point:
        return tensor
    if dim is not None and (tensor.dim() == 0 or tensor.shape[-1] != dim):
        raise Refusal(
            f"The request brings {name!r} of shape {tuple(tensor.shape)}; its last length must be"
            f" that of the study's model, {dim}."
        )
    if dim is not None and tensor.numel() > MOST_MODELS * dim:
        raise Refusal(f"The request brings {name!r} with more than {MOST_MODELS} models.")
    if not is_finite(tensor.flatten()):
        raise Refusal(f"The request brings {name!r} with a value that is not finite.")
    return tensor


def hash_of(tensors: Mapping[str, Tensor | None], *words: str) -> str:
    """Return the SHA-256 of all tensors and words, each preceded by its length."""
    digest = hashlib.sha256()
    parts: list[bytes | memoryview] = [word.encode() for word in words]
    for name, tensor in sorted(tensors.items()):
        if tensor is not None:
            parts.append(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            flat = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
            parts.append(flat.numpy().data)
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()


logger = logging.getLogger("erosion.site")


@contextmanager
def faults_of(model: ModelBase, request: Request | None = None) -> Iterator[None]:
    """Turn an exception of a package's code into a SiteError: its text stays at the site.

    So it is with a method's, where the `request` brings what only the method knows to fit. All
    others are faults of the program.
    """
    try:
        yield
    except ErosionError:
        raise
    except (Exception, SystemExit) as problem:
        remedy = "Correct its package, and tell the study's user"
        if model.runs_installed_code:
            what = f"The model {model.described()} failed on this hospital's patients"
        elif where := blamed(problem):
            what = where
        elif request is not None and _brings_more(request):
            what, remedy = "A method failed on what a request brings", "Tell the coordinator"
        else:
            raise
        logger.debug("%s", what, exc_info=True)
        reason = (str(problem).strip().splitlines() or [""])[0][:300]
        raise SiteError(
            f"{what} ({type(problem).__name__}: {reason})", remedy=f"{remedy}; -vv shows where."
        ) from None


def _brings_more(request: Request) -> bool:
    """Return whether it brings other than parameters, or not even these."""
    if isinstance(request, TrainRequest):
        return bool(request.enclosed or request.values) or request.sent is None
    return any(request.enclosed.values())
