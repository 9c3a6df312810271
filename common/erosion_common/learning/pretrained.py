"""Weights that a model starts from: a file that every site has, by its SHA-256.

A file is a state dict that torch wrote (.pt, .pth), read without running anything in it, or
safetensors by parameter name; the model of an earlier run is one. It never travels.
"""

import hashlib
import json
import warnings
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from math import prod
from pathlib import Path
from typing import Annotated

import torch
from pydantic import AfterValidator, Field
from torch import Tensor, nn

from erosion_common.errors import ModelError
from erosion_common.formats.tensor_file import read_tensors
from erosion_common.settings.base import Settings
from erosion_common.settings.names import Sha256
from erosion_common.support.files import open_named, version_of

FOLDER = "weights"  # where files of weights are looked for, unless another folder is named
TORCH, SAFETENSORS = (".pt", ".pth"), (".safetensors",)
SHAPES = "shapes"  # in the metadata of a run's model: [[name, [length, ...]], ...] in its order
MAX_BYTES = 16 * 2**30
SHOWN = 6  # names in a message


def _checked_file(value: str) -> str:
    if "/" in value or "\\" in value or value.startswith("."):
        raise ValueError("give the file's name alone; each machine says in which folder it is")
    if not value.endswith((*TORCH, *SAFETENSORS)):
        raise ValueError(f"it must end in one of {', '.join((*TORCH, *SAFETENSORS))}")
    return value


class Pretrained(Settings):
    """A file of weights. Sites look for it in `compute.weights`, a coordinator in `--weights`."""

    file: Annotated[str, AfterValidator(_checked_file)] = Field(
        description="Name of the file with the parameters, which every site has in its folder of "
        "weights."
    )
    sha256: Sha256 = Field(description="Of the file, as sha256sum prints it.")
    prefix: str = Field(
        default="",
        description='What its names begin with, such as "module."; names without it are not used.',
    )
    new: tuple[str, ...] = Field(
        default=(),
        description="Parameters that start afresh instead, such as a head of another size: "
        "names, or patterns with *.",
    )


def load_pretrained(model: nn.Module, pretrained: Pretrained, folder: Path | None) -> None:
    """Copy the file's weights into the model; raises ModelError."""
    path = (folder or Path(FOLDER)) / pretrained.file
    version = version_of(path)  # before it is hashed: what is loaded must be what was hashed
    _check(path, pretrained)
    given = _state_of(path, pretrained)
    wanted = model.state_dict(keep_vars=True)
    names_of: dict[int, list[str]] = {}  # of a parameter: a tied one has several
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names_of.setdefault(id(parameter), []).append(name)
    new = {name for name in wanted if matches(name, pretrained.new)}
    unknown = [
        pattern for pattern in pretrained.new if not any(matches(n, (pattern,)) for n in wanted)
    ]
    where = f"Weights {pretrained.file}"
    if unknown:
        raise ModelError(
            f"model.pretrained.new names {', '.join(unknown)}; the model has {some(list(wanted))}.",
            where=where,
        )
    absent = sorted(
        names[0]
        for names in names_of.values()
        if not any(name in given or name in new for name in names)
    )
    if absent:
        raise ModelError(
            f"{where} has no {some(absent)}, which the model has (it has {some(list(given))})",
            remedy="Name another file, set model.pretrained.prefix, or list what starts afresh"
            " under model.pretrained.new.",
        )
    problems = []
    with torch.no_grad():
        for name, target in wanted.items():
            value = given.get(name)
            if name in new or value is None:
                continue  # a buffer that the file does not have stays as the model made it
            if problem := _problem_with(value, target):
                problems.append(f"{name} {problem}")
            else:
                target.copy_(value)
    if problems:
        more = f"; and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
        raise ModelError(
            f"{'; '.join(problems[:SHOWN])}{more}",
            where=where,
            remedy="Name another file, or list what starts afresh under model.pretrained.new.",
        )
    if version_of(path) != version:
        raise ModelError(f"Weights {path} were changed while they were read", remedy="Try again.")


def _problem_with(value: Tensor, target: Tensor) -> str | None:
    """Return why the file's value cannot stand in the model; completes its name."""
    if value.shape != target.shape:
        return f"is {_shape(value)} there and {_shape(target)} in the model"
    if value.is_floating_point() != target.is_floating_point():
        return f"is {value.dtype} there and {target.dtype} in the model"
    if value.layout != torch.strided or value.is_meta:
        return "is sparse or has no values there"
    if value.is_floating_point() and not bool(torch.isfinite(value.to(target.dtype)).all()):
        return f"has values that are not finite as {target.dtype}"
    return None


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Return whether a parameter is named by one of the patterns."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def some(names: Sequence[str]) -> str:
    """Return the first of some names, for a message."""
    shown = ", ".join(names[:SHOWN]) or "none"
    return shown + (f", ... ({len(names)} in all)" if len(names) > SHOWN else "")


def _check(path: Path, pretrained: Pretrained) -> None:
    digest = hashlib.sha256()
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ModelError(
                f"Weights {path} are larger than {MAX_BYTES // 2**30} GiB", remedy="Use others."
            )
        with open_named(path) as file:
            while part := file.read(2**22):
                digest.update(part)
    except FileNotFoundError:
        raise ModelError(
            f"There are no weights {path}",
            remedy="Put the file there, or name its folder: compute.weights in a site file,"
            " --weights for a coordinator.",
        ) from None
    except OSError as problem:
        raise ModelError(f"Weights {path} cannot be read: {problem.strerror}.") from None
    if (found := digest.hexdigest()) != pretrained.sha256:
        raise ModelError(
            f"Weights {path} have the SHA-256 {found}, the study names {pretrained.sha256}",
            remedy="Get the file that the study was written for.",
        )


def _state_of(path: Path, pretrained: Pretrained) -> dict[str, Tensor]:
    try:
        raw: object
        if path.suffix in SAFETENSORS:
            raw = _read_safetensors(path)
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # of damaged files, which then raise
                # weights_only: a pickle with anything else than tensors in it is not unpickled.
                raw = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as problem:  # noqa: BLE001 - a damaged file may raise anything
        reason = str(problem).strip().splitlines() or ["damaged"]
        raise ModelError(
            f"Weights {path} cannot be read ({reason[0][:200]})",
            remedy="Save the model's state_dict(), tensors and nothing else.",
        ) from None
    if isinstance(raw, Mapping) and isinstance(raw.get("state_dict"), Mapping):
        raw = raw["state_dict"]
    if not isinstance(raw, Mapping) or not all(isinstance(value, Tensor) for value in raw.values()):
        raise ModelError(
            f"Weights {path} are no state dict: names and tensors",
            remedy="Save the model's state_dict().",
        )
    prefix = pretrained.prefix
    return {
        str(name).removeprefix(prefix): value
        for name, value in raw.items()
        if str(name).startswith(prefix)
    }


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors; of the model of a run, its parameters by name. Raises ValueError."""
    about, tensors = read_tensors(path)
    shapes = about.get(SHAPES)
    if shapes is None or set(tensors) != {"parameters"}:
        return tensors
    flat = tensors["parameters"]
    if flat.dim() != 1:
        raise ValueError(f"it is the mean of {len(flat)} models, and one is needed")
    named = json.loads(shapes)
    sizes = [prod(shape) for _, shape in named]
    if sum(sizes) != len(flat):
        raise ValueError("its names and its numbers do not fit together")
    parts = torch.split(flat, sizes)
    return {name: part.view(shape) for (name, shape), part in zip(named, parts, strict=True)}


def _shape(tensor: Tensor) -> str:
    return " x ".join(map(str, tensor.shape)) or "a single number"
