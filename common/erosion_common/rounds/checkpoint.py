"""One file from which a run resumes exactly: safetensors with a JSON header, no pickle.

JSON knows no other keys than text, and no difference between a list and a tuple: `checked_step`
refuses a rule's state that would come back as something else.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from erosion_common.errors import CheckpointError
from erosion_common.formats.tensor_file import (
    metadata,
    read_tensors,
    read_with_header,
    write_tensors,
)
from erosion_common.learning.pretrained import SHAPES
from erosion_common.rounds.checked_step import TENSOR, kind_of
from erosion_common.rounds.records import RunState
from erosion_common.support.files import replacing

VERSION = 1
REMEDY = "Start the study again, without it."
S = TypeVar("S")


def save(
    path: Path,
    state: RunState,
    *,
    arm: str,
    study_digest: str,
    once: Callable[[Path], object] = lambda _new: None,
) -> None:
    """Write an arm's state, atomically; `once` is called with the new file before it counts."""
    tensors: dict[str, Tensor] = {}
    header = {
        "version": VERSION,
        "study": study_digest,
        "arm": arm,
        "state": _encode(state, "", tensors),
    }
    _write(path, tensors, metadata(header, tensors), once)


def load(path: Path, template: RunState, *, arm: str, study_digest: str) -> RunState:
    """Read what `save` wrote. `template` is a fresh state of the same arm, for its types.

    Raises CheckpointError where the file is missing, damaged, or of another study or arm.
    """
    try:
        header, tensors = read_with_header(path)
    except (OSError, ValueError) as problem:
        raise CheckpointError(
            f"The checkpoint {path} cannot be read ({problem})", remedy=REMEDY
        ) from None
    if header.get("version") != VERSION:
        raise CheckpointError(
            f"The checkpoint {path} is of version {header.get('version')!r:.40}; this program"
            f" reads version {VERSION}",
            remedy=f"Resume with the program that wrote it, or: {REMEDY}",
        )
    for key, expected in (("study", study_digest), ("arm", arm)):
        if header.get(key) != expected:
            raise CheckpointError(
                f"The checkpoint {path} is of {key} {header.get(key)!r:.80}, expected {expected!r}",
                remedy="Resume with the study file that the run was started with.",
            )
    try:
        return _decode(header.get("state"), template, tensors, "state")
    except _Unknown as problem:
        raise CheckpointError(
            f"The checkpoint {path} is not of this version of the program: {problem}",
            remedy=f"Resume with the version that wrote it, or: {REMEDY}",
        ) from None


def _encode(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    if value is None or isinstance(value, str | int | float | bool):  # thousands of losses
        return value
    if isinstance(value, Tensor):
        name = path if path not in tensors else f"{path} ({len(tensors)})"  # keys may have a "/"
        tensors[name] = value.detach().contiguous()
        return {TENSOR: name}
    if is_dataclass(value) and not isinstance(value, type):
        return {
            f.name: _encode(getattr(value, f.name), f"{path}/{f.name}", tensors)
            for f in fields(value)
        }
    if isinstance(value, Mapping):
        return {key: _encode(item, f"{path}/{key}", tensors) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_encode(item, f"{path}/{i}", tensors) for i, item in enumerate(value)]
    raise TypeError(f"{path}: a {type(value).__name__} cannot be part of a run's state")


def _write(
    path: Path,
    tensors: dict[str, Tensor],
    about: dict[str, str] | None = None,
    once: Callable[[Path], object] = lambda _new: None,
) -> None:
    """Write straight from the tensors' memory, without a copy. Raises OSError."""
    with replacing(path, once=once) as file:
        write_tensors(file, tensors, about)


class _Unknown(Exception):  # noqa: N818 - becomes part of a CheckpointError
    """What in a checkpoint is not as the template shows it."""


def _decode(value: Any, template: S, tensors: Mapping[str, Tensor], place: str) -> S:
    """Rebuild the dataclasses that `template` shows; everything else is plain."""
    if is_dataclass(template) and not isinstance(template, type):
        if not isinstance(value, dict):
            raise _Unknown(f"{place} is no group of fields")
        known = {f.name: getattr(template, f.name) for f in fields(template)}
        if missing := sorted(known.keys() - value.keys()):
            raise _Unknown(f"{place} lacks {', '.join(missing)}")
        if unknown := sorted(value.keys() - known.keys()):
            raise _Unknown(f"{place} has {', '.join(unknown)}, which is not known")
        made = {n: _decode(value[n], t, tensors, f"{place}.{n}") for n, t in known.items()}
        return type(template)(**made)
    found = _plain(value, tensors, place)
    if template is not None and found is not None and kind_of(found) != kind_of(template):
        raise _Unknown(f"{place} is a {kind_of(found)}, expected a {kind_of(template)}")
    return found  # type: ignore[no-any-return]


def _plain(value: Any, tensors: Mapping[str, Tensor], place: str) -> Any:
    if isinstance(value, dict):
        if value.keys() == {TENSOR}:
            name = value[TENSOR]
            if not isinstance(name, str) or name not in tensors:
                raise _Unknown(f"the tensor of {place} is missing")
            return tensors[name]
        return {key: _plain(item, tensors, f"{place}.{key}") for key, item in value.items()}
    if isinstance(value, list):
        return tuple(_plain(item, tensors, place) for item in value)
    return value


def save_model(path: Path, params: Tensor, shapes: Mapping[str, Sequence[int]]) -> None:
    """Write the final parameters, (dim,) or (m, dim); `shapes` are of those in each row of them."""
    about = {SHAPES: json.dumps([[name, list(shape)] for name, shape in shapes.items()])}
    _write(path, {"parameters": params.contiguous()}, about)


def load_model(path: Path) -> Tensor:
    """Read what `save_model` wrote: (dim,) or (m, dim) float32. Raises CheckpointError."""
    try:
        params = read_tensors(path)[1]["parameters"]
    except (OSError, KeyError, ValueError) as problem:
        raise CheckpointError(
            f"The model {path} cannot be read ({problem})",
            remedy="Bring it back from a backup, or run the study again.",
        ) from None
    if params.dtype != torch.float32 or params.dim() not in (1, 2) or not len(params):
        raise CheckpointError(f"The model {path} holds {params.dtype} of shape {params.shape}.")
    return params
