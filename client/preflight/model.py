"""Checks that the study's model can be made here, and lists what of it would travel."""

from collections.abc import Iterator

from torch import nn

from erosion.client.finding import Finding, failed, ok, skipped, warning
from erosion.client.site_file import Site
from erosion.client.training.limits import problem_with_code
from erosion.common.errors import ModelError
from erosion.common.learning.installed import Installed, installed_model
from erosion.common.learning.models import build_model
from erosion.common.learning.pretrained import some
from erosion.common.learning.trainable import named_trained_parameters, tied_names
from erosion.common.study.study import Study

WHAT = "model"


def check_model(site: Site, study: Study) -> Iterator[Finding]:
    """The code and its hash, the file of weights, and the parameters that travel."""
    model = study.model
    if isinstance(model, Installed):
        yield _code(model)
        if problem := problem_with_code(model, site.limits):
            yield failed(
                WHAT,
                f"the study wants {problem}",
                "read the package's code; if this hospital is to run it, write under"
                f' [limits.installed_models]: "{model.entry_point}" = "{model.sha256}"',
            )
            yield skipped(WHAT, "its code is not run before the limits allow it")
            return
    try:
        study.check_model()
        module = build_model(
            model,
            study.task.input_shape,
            study.task.num_outputs,
            study.seed,
            weights=site.compute.weights,
        )
    except ModelError as problem:
        text, _, remedy = str(problem).partition(". ")
        yield failed(WHAT, text, remedy)
        return
    if model.pretrained is not None:
        file = model.pretrained
        fresh = f"; afresh start {', '.join(file.new)}" if file.new else ""
        yield ok(WHAT, f"starts from {file.file}, SHA-256 {file.sha256}{fresh}")
    yield ok(WHAT, f"{model.described()}: {_counts(module)}")
    if tied := tied_names(module):
        yield warning(WHAT, f"parameters with two names travel once: {some(tied)}", "")


def _code(model: Installed) -> Finding:
    try:
        found = installed_model(model.entry_point)
    except ModelError as problem:
        text, _, remedy = str(problem).partition(". ")
        return failed(WHAT, text, remedy)
    what = f"{found.name!r} is {found.target} of {found.distribution}, SHA-256 {found.sha256}"
    if found.sha256 != model.sha256:
        return failed(
            WHAT,
            f"{what}; the study names {model.sha256}",
            "install the version of the package that the study was written for",
        )
    return ok(WHAT, what)


def _counts(module: nn.Module) -> str:
    travelling = {name: p.numel() for name, p in named_trained_parameters(module)}
    frozen = {n: p.numel() for n, p in module.named_parameters() if not p.requires_grad}
    text = f"{sum(travelling.values()):,} parameters travel"
    if frozen:
        text += f"; {sum(frozen.values()):,} are frozen and never do ({some(list(frozen))})"
    buffers = sum(buffer.numel() for buffer in module.buffers())
    return text + (f"; {buffers:,} numbers of its buffers stay as they are" if buffers else "")
