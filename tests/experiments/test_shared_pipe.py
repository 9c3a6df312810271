"""Messages between two processes: pickles through a pipe, large arrays in shared memory."""

import mmap
from dataclasses import dataclass
from multiprocessing import get_context

import numpy as np
import pytest
import torch
from torch import Tensor

from erosion.simulation.worker_processes import LARGE, SharedPipe

FLOATS = LARGE // 4  # of the smallest array that is large


@dataclass(frozen=True, slots=True, eq=False)
class Message:
    name: str
    tensors: dict[str, Tensor]


def ends(num_bytes: int) -> tuple[SharedPipe, SharedPipe]:
    pipes = get_context("fork").Pipe()
    memory = mmap.mmap(-1, num_bytes), mmap.mmap(-1, num_bytes)
    return SharedPipe(pipes[0], *memory), SharedPipe(pipes[1], *reversed(memory))


def received(channel: SharedPipe) -> Message:
    (message,) = channel.receive() or (None,)
    assert isinstance(message, Message)
    return message


def test_what_is_sent_arrives_whatever_its_size_and_type() -> None:
    one, other = ends(20 * LARGE)
    tensors = {
        "small": torch.arange(5.0),
        "none": torch.empty(0),
        "number": torch.tensor(3.0),
        "large": torch.randn(3, FLOATS),
        "bytes": torch.arange(2 * LARGE).to(torch.uint8),
        "whole": torch.arange(FLOATS),
        "turned": torch.randn(FLOATS, 2).T,
        "part": torch.randn(2 * FLOATS)[::2],
    }
    one.send(Message("first", tensors))
    message = received(other)
    assert message.name == "first"
    assert list(message.tensors) == list(tensors)
    for name, tensor in tensors.items():
        assert message.tensors[name].dtype == tensor.dtype
        assert torch.equal(message.tensors[name], tensor), name


def test_what_arrived_belongs_to_the_receiver() -> None:
    one, other = ends(4 * LARGE)
    sent = torch.ones(FLOATS)
    one.send(Message("", {"sent": sent, "small": torch.ones(2)}))
    message = received(other)
    sent.zero_()
    assert one.receive() is None  # "taken"
    one.send(Message("", {"sent": sent}))
    assert received(other).tensors["sent"].sum() == 0
    assert message.tensors["sent"].sum() == FLOATS
    message.tensors["sent"].add_(1)  # it may be written to
    message.tensors["small"].add_(1)


def test_a_second_message_waits_until_the_first_was_taken() -> None:
    one, other = ends(4 * LARGE)
    for value in range(3):
        one.send(Message("", {"t": torch.full((FLOATS,), float(value))}))
        assert received(other).tensors["t"][0] == value  # and answers "taken"


def test_what_does_not_fit_into_the_shared_memory_goes_through_the_pipe() -> None:
    # So little that the pipe holds it while nobody reads.
    one, other = ends(LARGE + 8)
    one.send(Message("", {"a": torch.ones(FLOATS), "b": torch.full((FLOATS,), 2.0)}))
    message = received(other)
    assert message.tensors["a"].mean() == 1
    assert message.tensors["b"].mean() == 2


def test_one_tensor_in_two_places_travels_once() -> None:
    one, other = ends(4 * LARGE)
    tensor = torch.randn(FLOATS)
    one.send(Message("", {"a": tensor, "b": tensor}))
    message = received(other)
    assert message.tensors["a"].data_ptr() == message.tensors["b"].data_ptr()


def test_arrays_of_numpy_travel_too() -> None:
    one, other = ends(9 * LARGE)
    one.send({"a": np.arange(LARGE, dtype=np.float64)})
    (message,) = other.receive() or (None,)
    assert isinstance(message, dict)
    assert message["a"][-1] == LARGE - 1


def test_an_end_that_was_closed_is_an_error_at_the_other() -> None:
    one, other = ends(LARGE)
    other.close()
    with pytest.raises(EOFError):
        one.receive()
    with pytest.raises(OSError, match="pipe"):
        one.send("nobody reads this")
