"""Code that tests share is in tests/support, where a reader looks for it."""

import ast
import re
import subprocess
import sys
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


def test_such_an_import_is_found(tmp_path: Path) -> None:
    for line in ("from tests.e2e.test_resume import start", "from tests.e2e import test_resume",
                 "import tests.e2e.test_resume"):  # fmt: skip
        (tmp_path / "a.py").write_text(line)
        assert any(map(is_test, imported(tmp_path / "a.py")))


def test_after_the_time_for_them_long_tests_are_left_out_and_others_run() -> None:
    command = [sys.executable, "-m", "pytest", "--long-until=1", "--quiet", __file__,
               str(TESTS / "experiments" / "test_tables.py"),
               "-k", "standard or such_an_import"]  # fmt: skip
    ran = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    assert re.search(r"^1 passed, [1-9]\d* skipped", ran.stdout, flags=re.MULTILINE), ran.stdout
    assert "this machine is slow" in ran.stdout
