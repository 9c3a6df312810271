"""The parameters of a module that are trained and travel, and modules that cannot be trained.

A parameter that does not require a gradient is frozen: it keeps its value, at every site the same,
and is in no flat vector. Buffers are constants. So torch's batch normalisation uses the statistics
that it has from a file of weights, in training too; `SiteBatchNorm` gathers its own as parameters.
"""

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from erosion_common.errors import ModelError
from erosion_common.learning.pretrained import matches, some

CPU = torch.device("cpu")
# torch has one generator for the process, and studies that run at once are threads of it.
_TURN = threading.RLock()
os.register_at_fork(
    before=_TURN.acquire, after_in_parent=_TURN.release, after_in_child=_TURN.release
)


@contextmanager
def draws_from(seed: int, device: torch.device = CPU) -> Iterator[None]:
    """Let layers on `device` draw from `seed` within; restore the generators afterwards."""
    generator = torch.default_generator
    with _TURN:
        before = generator.get_state()
        on_gpu = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        try:
            generator.manual_seed(seed)
            if on_gpu is not None:
                with torch.cuda.device(device):
                    torch.cuda.manual_seed(seed)
            yield
        finally:
            generator.set_state(before)
            if on_gpu is not None:
                torch.cuda.set_rng_state(on_gpu, device)


ROUNDING = 1e-3  # of the largest output; more is another prediction
SAME = 1e-4  # likewise, of the same patients by the same parameters
PASSES = 2  # in training, by which what a model remembers of its patients shows


def trained_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Return those that local training changes and that travel, in `model.parameters()` order."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def named_trained_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the same with their names; one that has several counts once, by the first."""
    return ((name, p) for name, p in model.named_parameters() if p.requires_grad)


def places_of(shapes: Mapping[str, Sequence[int]]) -> dict[str, slice]:
    """Return each trained parameter's place in the flat vector, by its name, in order."""
    places: dict[str, slice] = {}
    end = 0
    for name, shape in shapes.items():
        places[name] = slice(end, end := end + prod(shape))
    return places


def flat_parameters(model: nn.Module) -> Tensor:
    """Return a copy of all trained parameters, in `model.parameters()` order: (dim,) float32."""
    return nn.utils.parameters_to_vector(trained_parameters(model)).detach()


def load_flat_parameters(model: nn.Module, vector: Tensor) -> None:
    """Copy `vector` (dim,) into the model; raises ValueError where the length does not fit."""
    trained = trained_parameters(model)
    dim = sum(parameter.numel() for parameter in trained)
    if vector.shape != (dim,):
        raise ValueError(f"{tuple(vector.shape)} parameters for a model of {dim}")
    offset = 0
    with torch.no_grad():
        for parameter in trained:
            count = parameter.numel()
            parameter.copy_(vector[offset : offset + count].view_as(parameter))
            offset += count


def freeze(model: nn.Module, patterns: Sequence[str]) -> None:
    """Freeze the parameters that the patterns name; raises ModelError."""
    named = dict(model.named_parameters(remove_duplicate=False))
    for pattern in patterns:
        if not any(matches(name, (pattern,)) for name in named):
            raise ModelError(
                f"model.frozen names {pattern!r}; the model's parameters are {some(list(named))}."
            )
    for name, parameter in named.items():
        if matches(name, patterns):
            parameter.requires_grad_(False)
    if not trained_parameters(model):
        raise ModelError(
            "Every parameter of the model is frozen, so nothing is left to train",
            remedy="Leave some out of model.frozen.",
        )


def to_training(model: nn.Module) -> None:
    """Training mode, but for what is frozen as a whole and for normalisation with statistics."""
    model.train()
    some_are_frozen = not all(parameter.requires_grad for parameter in model.parameters())
    for module in model.modules():
        if _has_statistics(module) or (some_are_frozen and _is_frozen(module)):
            module.eval()


@contextmanager
def held_but(model: nn.Module, trained: Tensor) -> Iterator[None]:
    """Freeze all parameters within but those that are in `trained` (dim,) bool as a whole."""
    parameters = trained_parameters(model)
    parts = torch.split(trained, [parameter.numel() for parameter in parameters])
    held = [p for p, part in zip(parameters, parts, strict=True) if not bool(part.all())]
    try:
        for parameter in held:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in held:
            parameter.requires_grad_(True)


def check_trainable(model: object, what: str) -> nn.Module:
    """Return the module; raises ModelError unless parameters can travel and buffers are constant.

    `what` opens the messages.
    """
    if not isinstance(model, nn.Module):
        raise ModelError(f"{what} gave a {type(model).__name__}; it must give an nn.Module.")
    if not hasattr(model, "_parameters"):
        raise ModelError(
            f"{what} gave a {type(model).__name__} whose __init__ does not call super().__init__()",
            remedy="Call it there first.",
        )
    parameters = dict(model.named_parameters())
    for name, parameter in parameters.items():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise ModelError(
                f"{name} has no shape yet", where=what, remedy="Give lazy layers their sizes."
            )
    if not any(p.requires_grad and p.numel() for p in parameters.values()):
        raise ModelError(f"{what} has no parameter that is trained", remedy="Give it one.")
    for name, parameter in parameters.items():
        if parameter.requires_grad and parameter.dtype != torch.float32:
            raise ModelError(
                f"{name} is {parameter.dtype}; what is trained travels as torch.float32",
                where=what,
                remedy="Convert it, or freeze it.",
            )
    _check_memory({name: p for name, p in parameters.items() if p.requires_grad}, what)
    return model


def check_statistics(model: nn.Module, what: str) -> None:
    """Raise ModelError for a normalisation by other patients, or by statistics of nobody."""
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) and module.running_mean is None:
            raise ModelError(
                f"{name} ({type(module).__name__}) normalises a patient by other patients, so"
                " that a prediction would depend on who else is in the table",
                where=what,
                remedy="Use GroupNorm or LayerNorm.",
            )
        if not _has_statistics(module):
            continue
        mean, variance = module.running_mean, module.running_var
        assert isinstance(mean, Tensor)
        assert isinstance(variance, Tensor)
        if mean.is_meta:
            continue
        if not mean.any() and bool((variance == 1).all()):
            raise ModelError(
                f"{name} ({type(module).__name__}) has running statistics that nobody has"
                " gathered, and hospitals' statistics cannot be averaged",
                where=what,
                remedy="Use GroupNorm or LayerNorm, or start from a file of weights"
                " (model.pretrained); its statistics then stay. With normalisation ="
                ' "site" each site gathers them.',
            )


def check_same_start(model: nn.Module, again: nn.Module, what: str) -> None:
    """Raise ModelError where the same seed made two models: every site would have its own."""
    first, second = (
        {**dict(made.named_parameters()), **dict(made.named_buffers())} for made in (model, again)
    )
    for name in [*first, *second]:
        if name not in first or name not in second or not _are_same(first[name], second[name]):
            raise ModelError(
                f"{name} is not the same when the model is made again, so that every site would"
                " have another one",
                remedy="Draw it with torch's seeded generator.",
                where=what,
            )


def try_out(model: nn.Module, input_shape: Sequence[int], num_outputs: int, what: str) -> None:
    """A training step and a prediction on made-up patients; raises ModelError."""
    inputs = torch.randn(2, *input_shape, generator=torch.Generator().manual_seed(0))
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    starts = [parameter.detach().clone() for parameter in trained_parameters(model)]
    with draws_from(0):
        try:
            elsewhere = [start + 0.1 * torch.randn_like(start) for start in starts]
            _move(trained_parameters(model), elsewhere)
            before = _predicted(model, inputs)  # when it has not seen anybody in training
            _move(trained_parameters(model), starts)
            to_training(model)
            outputs = model(inputs)
            _check_outputs(outputs, 2, num_outputs, what)
            if not outputs.is_floating_point() or not bool(torch.isfinite(outputs).all()):
                raise ModelError(
                    f"{what} gives outputs that are not finite numbers", remedy="Correct its start."
                )
            if not outputs.requires_grad:
                raise ModelError(_unreached(what))
            torch.autograd.backward(outputs.square().mean())
            reached = any(parameter.grad is not None for parameter in trained_parameters(model))
            _move(trained_parameters(model), elsewhere)
            model(inputs)  # where a buffer that follows the parameters has changed
            _check_predictions(model, inputs, num_outputs, what)
            to_training(model)
            for _ in range(PASSES):
                model(torch.randn_like(inputs))
            _move(trained_parameters(model), elsewhere)  # statistics are parameters, too
            after = _predicted(model, inputs)
        except ModelError:
            raise
        except Exception as problem:  # noqa: BLE001 - somebody else's code
            reason = (str(problem).strip().splitlines() or [""])[0][:300]
            raise ModelError(
                f"{what} cannot be trained on inputs of shape {('n', *input_shape)}:"
                f" {type(problem).__name__}: {reason}",
                remedy="Change task.shape, or the model.",
            ) from None
    _move(trained_parameters(model), starts)
    model.zero_grad(set_to_none=True)
    model.eval()
    if not reached:
        raise ModelError(_unreached(what))
    for name, buffer in model.named_buffers():
        if name not in buffers or not torch.equal(buffers[name], buffer):
            raise ModelError(
                f"the buffer {name} changes in training, and only parameters travel",
                where=what,
                remedy="Use a layer without such a buffer, or freeze the part that it belongs to.",
            )
    if not _agree(before, after):
        raise ModelError(
            f"{what} predicts something else by the same parameters once it was trained, so it"
            " keeps something of the patients that is no parameter, and only parameters travel",
            remedy="Leave out what its forward() changes when self.training is set.",
        )


def tied_names(model: nn.Module) -> list[str]:
    """Return second names of parameters that the module uses twice, as `second = first`."""
    first: dict[int, str] = {}
    tied = []
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if id(parameter) in first:
            tied.append(f"{name} = {first[id(parameter)]}")
        first.setdefault(id(parameter), name)
    return tied


def _move(parameters: Sequence[nn.Parameter], values: Sequence[Tensor]) -> None:
    with torch.no_grad():
        for parameter, value in zip(parameters, values, strict=True):
            parameter.copy_(value)


def _check_memory(parameters: dict[str, nn.Parameter], what: str) -> None:
    """Refuse parameters that share memory, except where one object is used twice."""
    owner: dict[int, str] = {}
    for name, parameter in parameters.items():
        if parameter.is_meta or not parameter.numel():
            continue
        place = parameter.untyped_storage().data_ptr()
        if place in owner:
            raise ModelError(
                f"{name} and {owner[place]} are different parameters in the same memory",
                remedy="Tie them by using one nn.Parameter in both places.",
                where=what,
            )
        owner[place] = name


def _check_outputs(outputs: object, num_patients: int, num_outputs: int, what: str) -> None:
    if not isinstance(outputs, Tensor) or outputs.shape != (num_patients, num_outputs):
        given = (
            f"a tensor of shape {tuple(outputs.shape)}"
            if isinstance(outputs, Tensor)
            else f"a {type(outputs).__name__}"
        )
        raise ModelError(
            f"{what} gives {given} for {num_patients} patient{'s' * (num_patients > 1)}; the"
            f" study's task needs a tensor of shape ({num_patients}, {num_outputs})."
        )


def _check_predictions(model: nn.Module, inputs: Tensor, num_outputs: int, what: str) -> None:
    """Check that neither other patients nor chance change a patient's prediction."""
    model.eval()
    with torch.no_grad():
        together, *alone = (model(part) for part in (inputs, *torch.split(inputs, 1)))
    _check_outputs(together, len(inputs), num_outputs, what)
    for outputs in alone:
        _check_outputs(outputs, 1, num_outputs, what)
    # Made-up parameters may overflow; nothing can be compared then.
    most = ROUNDING * together.abs().max()
    if torch.isfinite(most) and bool(((torch.cat(alone) - together).abs() > most).any()):
        raise ModelError(
            f"{what} predicts something else for a patient alone than among others, or each time"
            " that it is asked",
            remedy="Let dropout follow self.training, and use no layer that mixes patients.",
        )


def _predicted(model: nn.Module, inputs: Tensor) -> Tensor:
    model.eval()
    with torch.no_grad():
        predicted: Tensor = model(inputs)
    return predicted


def _agree(one: Tensor, other: Tensor) -> bool:
    # Made-up parameters may overflow; nothing can be compared then.
    most = SAME * one.abs().max()
    return not torch.isfinite(most) or bool(((one - other).abs() <= most).all())


def _unreached(what: str) -> str:
    return f"{what}: no gradient reaches its parameters. Correct its forward()."


def _are_same(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    return bool(((one == other) | ((one != one) & (other != other))).all())  # NaN, too


def _is_frozen(module: nn.Module) -> bool:
    parameters = list(module.parameters())
    return bool(parameters) and not any(p.requires_grad for p in parameters)


def _has_statistics(module: nn.Module) -> bool:
    return isinstance(module, _NormBase) and module.running_mean is not None
