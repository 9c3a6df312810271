"""Nothing uses what Flower does not publish."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PUBLIC = {"flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.serverapp.strategy"}
# Other systems that ours is measured against.
OTHERS = ("experiments/benchmarks/peers/", "experiments/benchmarks/aggregation.py")
# Objects of Flower's that carry something of ours along: an array over memory that is not copied,
# and a reply with the number of its bytes.
CARRIERS = {
    "common/protocol/flower_arrays.py": {"self.__dict__", "array.__dict__"},
    "server/link/grid.py": {"reply.__dict__"},
    "server/link/site_session.py": {"reply.__dict__"},
    "common/study/study.py": {"copied.__dict__"},  # a study's own copy
}


def files() -> Iterator[Path]:
    for side in ("common", "server", "client", "experiments", "erosion"):
        for path in sorted((ROOT / side).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            linked = side == "erosion" and any(p.is_symlink() for p in path.parents)
            if not linked and not name.startswith(OTHERS):
                yield path


def private_uses(tree: ast.AST) -> Iterator[str]:
    """Imports of Flower's private modules, and pokes into an object's `__dict__`."""
    for node in ast.walk(tree):
        modules: list[str] = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules = [node.module]
        for module in modules:
            if module.partition(".")[0] == "flwr" and module not in PUBLIC:
                yield f"line {node.lineno}: {module}"  # type: ignore[attr-defined]
        if isinstance(node, ast.Attribute) and node.attr == "__dict__":
            yield ast.unparse(node)


def test_nothing_uses_flowers_private_names() -> None:
    found = {
        path.relative_to(ROOT).as_posix(): uses
        for path in files()
        if (uses := set(private_uses(ast.parse(path.read_text(encoding="utf-8")))))
    }
    assert found == CARRIERS


@pytest.mark.parametrize(
    "source",
    [
        "from flwr.supercore.fab import Fab",
        "import flwr.proto.node_pb2",
        "message.metadata.__dict__['_message_id'] = 1",
    ],
)
def test_a_private_use_is_found(source: str) -> None:
    assert list(private_uses(ast.parse(source)))
