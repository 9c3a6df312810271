"""Whether a checkpoint brings a rule's state back exactly as it was.

JSON knows no other keys than text, and no difference between a list and a tuple; so a run that is
resumed would go on from another state than one that was not interrupted.
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

TENSOR = "$tensor"  # marks a tensor's place in the JSON
_PLAIN = (bool, int, float, str)


def why_not_exactly(state: Any, first: Any) -> str:
    """What of a state would be another one after a checkpoint, and the remedy; "" for nothing.

    `first`: an earlier state of the same arm, which shows where dataclasses stand.
    """
    return next(_problems(state, first, "state"), "")


def kind_of(value: Any) -> str:
    """What JSON and tensors can tell apart."""
    if isinstance(value, Tensor):
        return f"{value.dtype} tensor of {value.dim()} dimensions"
    if isinstance(value, bool | str):
        return type(value).__name__
    if isinstance(value, int | float):
        return "number"
    return "table" if isinstance(value, Mapping) else "list"


def _problems(value: Any, first: Any, place: str) -> Iterator[str]:
    kind = type(value)
    if is_dataclass(first) and not isinstance(first, type) and kind is not type(first):
        yield f"{place} is a {kind.__name__}; it was a {type(first).__name__}, and must stay one"
    elif is_dataclass(value):
        if kind is not type(first):
            yield (
                f"{place} is a {kind.__name__}, of which a checkpoint keeps the values alone; let a"
                " field of the state's dataclass be it from the first state on, or write a dict"
            )
            return
        for each in fields(value):
            inner = f"{place}.{each.name}"
            if not each.init:
                yield f"{inner} is a field that its dataclass does not take (init=False)"
            yield from _problems(getattr(value, each.name), getattr(first, each.name), inner)
    elif value is not None and first is not None and kind_of(value) != kind_of(first):
        yield (
            f"{place} is a {kind_of(value)}; it was a {kind_of(first)}, and must stay one. What may"
            " be missing is None"
        )
    elif isinstance(value, Tensor):
        yield from _problems_of_tensor(value, place)
    elif kind is dict:
        yield from _problems_of_table(value, place)
    elif kind is tuple:
        for number, item in enumerate(value):
            yield from _problems(item, None, f"{place}[{number}]")
    elif isinstance(value, list | tuple):
        yield f"{place} is a {kind.__name__}, which comes back as a tuple; write a tuple"
    elif value is not None and kind not in _PLAIN:
        yield (
            f"{place} is a {kind.__name__}; a state is made of int, float, str, bool, None,"
            " tensors, tuples of them, and dicts of them with str keys"
        )


def _problems_of_table(table: Mapping[Any, Any], place: str) -> Iterator[str]:
    if table.keys() == {TENSOR}:
        yield f"{place} has the key {TENSOR!r} alone, which stands for a tensor; name it otherwise"
    for key, item in table.items():
        if type(key) is not str:
            yield (
                f"{place} has the key {key!r:.80} of type {type(key).__name__}, which comes back as"
                " a text; write str keys"
            )
        yield from _problems(item, None, f"{place}[{key!r:.80}]")


def _problems_of_tensor(tensor: Tensor, place: str) -> Iterator[str]:
    if type(tensor) is not Tensor:
        yield f"{place} is a {type(tensor).__name__}, which comes back as a plain tensor"
    elif tensor.requires_grad:
        yield f"{place} is a tensor with a gradient to come; detach() it"
    elif tensor.device.type != "cpu":
        yield f"{place} is a tensor on {tensor.device}, which comes back on the CPU; keep it there"
    elif tensor.layout != torch.strided:
        yield f"{place} is a tensor of layout {tensor.layout}; make it dense"
    elif not tensor.is_contiguous():
        yield (
            f"{place} is a tensor that does not lie in memory in its own order, and comes back so,"
            " which sums may round otherwise; keep tensor.contiguous()"
        )
