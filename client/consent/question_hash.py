"""The hash of a question: of all that its answer is computed from."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from erosion.common.protocol.messages import EvaluateRequest, TrainRequest
from erosion.common.sealed import legs


def hash_of_step(request: TrainRequest, kept: Mapping[str, Tensor]) -> str:
    """Of a step's question; `kept`: what the site keeps and the answer is computed from, too."""
    if request.step in legs.STEPS:
        return ""  # of which the sealed site keeps a book: a resumed round has fresh keys
    tensors = {"parameters": request.parameters, **request.enclosed, **_as_kept(kept)}
    values = sorted(item for item in request.values.items() if item[0] != legs.ATTEMPT)
    return _hash(tensors, str(request.scaling), str(values))


def hash_of_evaluation(request: EvaluateRequest, kept: Mapping[str, Tensor]) -> str:
    """The same of the question for final figures."""
    enclosed = {
        f"{arm}/{name}": tensor
        for arm, tensors in request.enclosed.items()
        for name, tensor in tensors.items()
    }
    return _hash({**request.parameters, **_as_kept(kept), **enclosed}, str(request.scaling))


def _as_kept(kept: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """By names that nothing has that is sent."""
    return {f"\0kept/{name}": tensor for name, tensor in kept.items()}


def _hash(tensors: Mapping[str, Tensor | None], *words: str) -> str:
    """SHA-256 over all that an answer is computed from, every part with its length before it."""
    digest = hashlib.sha256()
    for part in _parts(tensors, words):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()


def _parts(tensors: Mapping[str, Tensor | None], words: Sequence[str]) -> Iterator[bytes]:
    for name, tensor in sorted(tensors.items()):
        if tensor is not None:
            yield f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode()
            flat = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
            yield flat.numpy().tobytes()
    for word in words:
        yield word.encode()
