"""The examples of docs/extending.md."""

import re
from pathlib import Path
from typing import Any

from erosion_common.algorithms.base import ArmBase

_PAGE = (Path(__file__).resolve().parents[2] / "docs" / "extending.md").read_text()
SECTIONS = [  # title and text
    section.split("\n", 1) for section in re.split(r"^## ", _PAGE, flags=re.MULTILINE)[1:]
]


def python_of(text: str) -> str:
    return "\n".join(re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL))


def first_example(title: str) -> str:
    """A section's first block of Python: the file that it adds to the program."""
    found = re.search(r"```python\n(.*?)```", dict(SECTIONS)[title], flags=re.DOTALL)
    assert found is not None
    return found[1]


def example_of(title: str) -> dict[str, Any]:
    """What a section's example defines."""
    example: dict[str, Any] = {"__name__": "example"}
    exec(python_of(dict(SECTIONS)[title]), example)
    return example


def method_with_two_exchanges() -> type[ArmBase]:
    method: type[ArmBase] = example_of("A method with two exchanges")["MedianLength"]
    return method
