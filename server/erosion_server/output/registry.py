"""The outputs of `erosion server --output NAME`, each imported only where it is asked for.

One is a module, or a package's entry point in the group `erosion.outputs`, with
`open_output(where)`, which returns an `Observer` or raises ValueError.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from erosion_common.errors import RunError
from erosion_common.settings.packages import installed_names, load_part

if TYPE_CHECKING:
    from erosion_server.output.observers import Observer


@dataclass(frozen=True, slots=True)
class Output:
    """One line of the registry."""

    module: str  # in this package
    summary: str  # for `erosion server --help`


OUTPUTS: Mapping[str, Output] = {
    "metrics": Output("metrics_csv", "metrics.csv in the run's folder, a line for every figure"),
    "notify": Output(
        "notify", "notifies a program or an address of the end: notify=PROGRAM or =URL"
    ),
    "watch": Output("watched", "a page on 127.0.0.1 that follows the run, at a port: watch=8000"),
    "mlflow": Output("mlflow_runs", "MLflow at MLFLOW_TRACKING_URI, or mlflow=ADDRESS"),
    "tensorboard": Output("tensorboard_files", "TensorBoard's files: tensorboard=FOLDER"),
}


def in_words() -> str:
    """Return the outputs for `--help`."""
    return "; ".join(f"{name}: {output.summary}" for name, output in OUTPUTS.items())


def open_outputs(wanted: Sequence[str]) -> dict[str, "Observer"]:
    """Return the observers for `NAME` or `NAME=WHERE`, each on its thread. Raises RunError."""
    from erosion_server.output.observers import InBackground

    return {name: InBackground(observer) for name, observer in check_outputs(wanted).items()}


def check_outputs(wanted: Sequence[str]) -> dict[str, "Observer"]:
    """Return the same without threads, before anything is made for a run. Raises RunError."""
    opened: dict[str, Observer] = {}
    for text in wanted:
        name, _, where = text.partition("=")
        known = [*OUTPUTS, *installed_names("output")]
        if name not in known:
            raise RunError(
                f"there is no such output. Known: {', '.join(known)}", where=f"--output {text}"
            )
        if name in opened:
            raise RunError(
                f"{name} is given twice", where=f"--output {text}", remedy="Leave one out."
            )
        try:
            opened[name] = _opener(name)(where)
        except ValueError as problem:
            raise RunError(f"{name} {problem}.", where=f"--output {text}") from None
    return opened


def _opener(name: str) -> "Callable[[str], Observer]":
    if name not in OUTPUTS:
        return load_part("output", name)  # type: ignore[no-any-return]  # of a package
    module = import_module(f"erosion_server.output.{OUTPUTS[name].module}")
    return module.open_output  # type: ignore[no-any-return]
