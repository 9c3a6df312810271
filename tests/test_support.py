"""Code that tests share is in tests/support, where a reader looks for it."""

import re
from pathlib import Path

TESTS = Path(__file__).parent
OF_A_TEST = re.compile(r"^\s*(?:from|import) tests\b.*\b(?:test_\w+|conftest)\b", re.MULTILINE)


def test_no_module_imports_from_a_test_module() -> None:
    for path in TESTS.rglob("*.py"):
        lines = OF_A_TEST.findall(path.read_text("utf-8"))  # a program's text may name its own test
        assert [line for line in lines if path.stem not in line] == [], path
