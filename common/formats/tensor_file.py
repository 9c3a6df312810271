"""Reads a safetensors file, with one kind of error for everything that can be wrong with it."""

import json
from pathlib import Path
from typing import Any

import safetensors
from torch import Tensor

from erosion.common.support.files import open_named


def read_tensors(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """The metadata and the tensors by name. Raises OSError, and ValueError for a damaged file."""
    with open_named(path):  # a pipe would be waited for
        pass
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            about: dict[str, str] = file.metadata() or {}
            return about, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    # Of types that PyTorch does not have safetensors raises what it likes.
    except (safetensors.SafetensorError, LookupError, TypeError, AttributeError) as problem:
        raise ValueError(str(problem)) from None


def header_in(about: dict[str, str]) -> dict[str, Any]:
    """The JSON object that this program writes beside its tensors. Raises ValueError."""
    try:
        header = json.loads(about["erosion"])
    except KeyError:
        raise ValueError("it has no header of this program") from None
    except RecursionError as problem:
        raise ValueError(str(problem)) from None
    if not isinstance(header, dict):
        raise ValueError("its header is not a JSON object")
    return header
