"""The forms of all that leaves a site: fields of each reply, and arrays beside it."""

import ast
from collections.abc import Iterator
from dataclasses import is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, get_args, get_type_hints

from pydantic import BaseModel

from erosion_common.protocol import wire
from erosion_common.protocol.messages import (
    DescribeReply,
    EvaluateReply,
    StepReply,
    SummaryReply,
    TrainReply,
)
from erosion_common.sealed import phases

ROOT = Path(__file__).resolve().parents[2]

FORMS: dict[str, list[type[BaseModel]]] = {
    "describe": [DescribeReply],
    "summary": [SummaryReply],
    "train": [TrainReply],
    "train.STEP": [StepReply],
    f"train.{phases.DISTANCE}": [phases.DistanceSaid],
    f"train.{phases.MASKED}": [phases.MaskedSaid],
    f"train.{phases.UNMASK}": [phases.UnmaskSaid],
    "evaluate": [EvaluateReply],
    "any of a round": [wire.StudyWanted],
    "notice": [wire.Notice],
}
ANNOUNCING = ("attachment_sizes", "own_attachments")  # what comes beside an update


def annotations(form: type) -> dict[str, Any]:
    if issubclass(form, BaseModel):
        return {name: field.annotation for name, field in form.model_fields.items()}
    return get_type_hints(form)


def models_in(annotation: Any) -> Iterator[type]:
    if isinstance(annotation, type) and (
        issubclass(annotation, BaseModel) or is_dataclass(annotation)
    ):
        yield annotation
    for inner in get_args(annotation):
        yield from models_in(inner)


def attachments() -> set[str]:
    """Beside an update, of every method with any settings: the keys where they are announced."""
    found: set[str] = set()
    folder = ROOT / "common" / "erosion_common" / "algorithms"
    for path in sorted(folder.rglob("*.py")):
        place = ".".join(path.relative_to(folder).with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name in ANNOUNCING:
                module = import_module(
                    f"erosion_common.algorithms.{place}".removesuffix(".__init__")
                )
                keys = (k for n in ast.walk(node) if isinstance(n, ast.Dict) for k in n.keys if k)
                found |= {eval(ast.unparse(key), vars(module)) for key in keys}
    assert {"ball", "noise"} < found
    return found


ATTACHED: dict[str, set[str]] = {  # arrays with a message
    "train": {"update", *attachments()},
    f"train.{phases.DISTANCE}": {phases.SEALED_DISTANCE},
    f"train.{phases.MASKED}": {phases.WORDS},
}
