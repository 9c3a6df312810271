"""Code that tests share is in tests/support, where a reader looks for it."""

import ast
from pathlib import Path

TESTS = Path(__file__).parent


def imported(path: Path) -> set[str]:
    """The modules that a file imports from."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def is_test(module: str) -> bool:
    last = module.rpartition(".")[2]
    return module.startswith("tests.") and last.startswith(("test_", "conftest"))


def test_no_module_imports_from_a_test_module() -> None:
    found = {
        path.relative_to(TESTS).as_posix(): tests
        for path in sorted(TESTS.rglob("*.py"))
        if (tests := {module for module in imported(path) if is_test(module)})
    }
    assert found == {}
