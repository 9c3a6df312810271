"""A model's arrays as one flat vector of the parameters that are compared, and the rest."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray
from torch import Tensor

from erosion.flower.halves import is_no_parameter
from erosion_common.algorithms.base import Layout
from erosion_common.errors import StudyError

Values = NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class _Form:
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Which arrays a model has, by name, and which of them are its parameters."""

    names: tuple[str, ...]  # in the model's order, which Flower's users rely on
    parameters: Mapping[str, _Form]  # floating-point numbers: the flat vector
    rest: Mapping[str, _Form]  # buffers and counters

    @classmethod
    def of(cls, arrays: ArrayRecord, buffers: Collection[str] | None) -> "Arrangement":
        """Make it from the first arrays of a run. `buffers`: no parameters; None: found by name.

        Raises StudyError.
        """
        if unknown := sorted(set(buffers or ()) - set(arrays)):
            raise StudyError(
                f"buffers names {', '.join(unknown)}; the model's arrays are {', '.join(arrays)}."
            )
        parameters: dict[str, _Form] = {}
        rest: dict[str, _Form] = {}
        for name, array in arrays.items():
            values = array.numpy()
            form = _Form(values.shape, values.dtype)
            is_buffer = is_no_parameter(name, buffers)
            if not is_buffer and (values.dtype.kind not in "fiub" or values.dtype.itemsize > 8):
                raise StudyError(
                    f"The array {name} holds {values.dtype}, which is neither floating-point"
                    " nor whole numbers",
                    remedy="Send it as float32 or float64, or name it in buffers.",
                )
            if not is_buffer and values.dtype.kind == "f" and not np.isfinite(values).all():
                raise StudyError(
                    f"The array {name} of the initial model holds a value that is not finite."
                )
            (rest if is_buffer or values.dtype.kind != "f" else parameters)[name] = form
        if not any(np.prod(form.shape) for form in parameters.values()):
            raise StudyError("The initial arrays hold no floating-point parameters to be trained.")
        return cls(tuple(arrays), parameters, rest)

    @property
    def dim(self) -> int:
        """How many numbers the vector has."""
        return max(int(place.stop) for place in self.layout.values())

    @property
    def layout(self) -> Layout:
        """Every parameter's place in the vector."""
        places, at = {}, 0
        for name, form in self.parameters.items():
            places[name] = slice(at, at + int(np.prod(form.shape)))
            at = places[name].stop
        return places

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """Of the vector, which holds every parameter exactly: float32 or float64."""
        wide = any(form.dtype.itemsize > 4 for form in self.parameters.values())
        return np.dtype(np.float64 if wide else np.float32)

    def parts(self, arrays: ArrayRecord) -> tuple[Tensor, dict[str, Values]]:
        """Return the parameters, (dim,) of `dtype`, and everything else. Raises ValueError."""
        flat = [_values(arrays, name, form).ravel() for name, form in self.parameters.items()]
        if unknown := sorted(set(arrays) - set(self.names)):
            raise ValueError(f"an array {unknown[0]!r}, which the model lacks")
        rest = {name: _values(arrays, name, form) for name, form in self.rest.items()}
        for name, each in rest.items():
            if not np.array_equal(each.astype(self.rest[name].dtype), each) and (
                each.dtype.kind != "f"
            ):
                raise ValueError(f"the array {name!r} with a number that its type cannot hold")
            if each.dtype.kind == "f" and not np.isfinite(each).all():
                raise ValueError(f"the array {name!r} with a value that is not finite")
        with np.errstate(over="ignore"):  # what is too large becomes infinite, and is screened
            return torch.from_numpy(np.concatenate(flat).astype(self.dtype)), rest

    def record(self, vector: Tensor, rest: Mapping[str, Values]) -> ArrayRecord:
        """Return the arrays of these parameters, in the model's order and types."""
        places, numbers = self.layout, vector.numpy()
        made = {
            name: numbers[places[name]].reshape(form.shape).astype(form.dtype)
            for name, form in self.parameters.items()
        }
        made |= {name: rest[name].astype(form.dtype) for name, form in self.rest.items()}
        return ArrayRecord({name: Array(made[name]) for name in self.names})

    def description(self) -> str:
        """Return a text that distinguishes one model from another."""
        forms = {**self.parameters, **self.rest}
        return repr([(n, forms[n].shape, str(forms[n].dtype), n in self.rest) for n in self.names])


def _values(arrays: ArrayRecord, name: str, form: _Form) -> Values:
    if name not in arrays:
        raise ValueError(f"no array {name!r}")
    array = arrays[name]
    if tuple(array.shape) != form.shape:
        raise ValueError(f"the array {name!r} of shape {tuple(array.shape)}, not {form.shape}")
    try:
        values: Values = array.numpy()
        found = values.shape, values.dtype.kind
    except Exception as problem:  # noqa: BLE001 - numpy may raise anything on foreign bytes
        raise ValueError(
            f"the array {name!r}, which cannot be read ({type(problem).__name__})"
        ) from None
    if found != (form.shape, form.dtype.kind):
        raise ValueError(f"the array {name!r} of another shape or type than was sent")
    return values
