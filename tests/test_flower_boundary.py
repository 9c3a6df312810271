"""Nothing uses what Flower does not publish; ruff's SLF001 keeps `message._content` out."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PUBLIC = {
    "flwr.app",
    "flwr.clientapp",
    "flwr.serverapp",
    "flwr.serverapp.exception",
    "flwr.serverapp.strategy",
}
# Other systems that ours is measured against.
OTHERS = ("experiments/benchmarks/peers/", "experiments/benchmarks/simulation_programs.py")
ALLOWED = {
    # From 1.38 on, a message cannot be made without it.
    "common/erosion_common/protocol/flower.py": {"flwr.supercore.task_identity"},
    "common/erosion_common/study/study.py": {
        "copied.__dict__"
    },  # a study's own copy, which is no object of Flower
    "common/erosion_common/tasks/task.py": {"vars(cls)"},  # what a task's class has itself
}


def files() -> Iterator[Path]:
    for side in ("common", "server", "client", "experiments", "erosion"):
        for path in sorted((ROOT / side).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if not name.startswith(OTHERS):
                yield path


def private_uses(tree: ast.AST) -> Iterator[str]:
    """Flower's private modules, by import or by name, and pokes into an object from outside."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names):
                yield from (alias.name for alias in names if is_private(alias.name))
            case ast.ImportFrom(module=str(module)) if is_private(module):
                yield module
            case ast.Constant(str(text)) if is_private(text) and " " not in text:
                yield text
            case ast.Attribute(attr="__dict__"):
                yield ast.unparse(node)
            case ast.Call(ast.Name("vars"), [_, *_]):
                yield ast.unparse(node)
            case ast.Call(ast.Name("getattr" | "setattr"), [_, ast.Constant(str(name)), *_]):
                if name.startswith("_") and not name.startswith("__"):
                    yield ast.unparse(node)


def is_private(module: str) -> bool:
    return module.partition(".")[0] == "flwr" and module not in PUBLIC | {"flwr"}


def test_nothing_uses_flowers_private_names() -> None:
    found: dict[str, set[str]] = {}
    for path in files():
        text = path.read_text(encoding="utf-8")
        if re.search(r"flwr|__dict__|vars|[gs]etattr", text):  # parsing all takes long
            uses = set(private_uses(ast.parse(text)))
            found |= {path.relative_to(ROOT).as_posix(): uses} if uses else {}
    assert found == ALLOWED


@pytest.mark.parametrize(
    "source",
    [
        "from flwr.supercore.fab import Fab",
        "import flwr.proto.node_pb2",
        "import_module('flwr.supercore.task_identity')",
        "message.metadata.__dict__['_message_id'] = 1",
        "vars(message)['_content'] = None",
        "setattr(message, '_content', None)",
    ],
)
def test_a_private_use_is_found(source: str) -> None:
    assert list(private_uses(ast.parse(source)))
