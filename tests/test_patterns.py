"""Every regular expression of the program takes time that grows as its text does, and no faster."""

import ast
from collections.abc import Iterator
from pathlib import Path
from re import _compiler as compiler  # type: ignore[attr-defined]
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

import pytest

import erosion

SEARCHING = {"search", "sub", "subn", "split", "findall", "finditer"}
METHODS = {"compile", "match", "fullmatch", *SEARCHING}
SAMPLE = [chr(code) for code in range(1, 0x180)]
LEAVES = (codes.LITERAL, codes.NOT_LITERAL, codes.IN, codes.ANY, codes.CATEGORY)
REPEATS = (codes.MAX_REPEAT, codes.MIN_REPEAT)


def patterns_in(source: str, everything: str) -> Iterator[tuple[str, bool]]:
    """Each pattern that is written out, and whether it is looked for anywhere in a text."""
    tree = ast.parse(source)
    names = {
        id(node.value): ast.unparse(node.targets[0])
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        is_re = isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) == "re"
        method = node.func.attr if is_re else ""  # type: ignore[attr-defined]
        if method in METHODS and node.args and (text := written(node.args[0])) is not None:
            name = names.get(id(node))
            is_looked_for = name is None or any(
                f"{name}.{searching}" in everything for searching in SEARCHING
            )
            yield text, method in SEARCHING or (method == "compile" and is_looked_for)
        for keyword in node.keywords:
            if keyword.arg == "pattern" and (text := written(keyword.value)) is not None:
                yield text, True


def written(node: ast.expr) -> str | None:
    """A pattern, with a letter for whatever is put into it."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if not isinstance(node, ast.JoinedStr):
        return None
    return "".join(
        str(part.value) if isinstance(part, ast.Constant) else "x" for part in node.values
    )


def all_patterns() -> list[tuple[str, str, bool]]:
    root = Path(erosion.__path__[0]).parent
    files = [
        p for top in ("client", "common", "server", "erosion") for p in (root / top).rglob("*.py")
    ]
    texts = {file: file.read_text() for file in files}
    everything = "\n".join(texts.values())
    found = {
        (str(file.relative_to(root)), text, anywhere)
        for file in files
        for text, anywhere in patterns_in(texts[file], everything)
    }
    return sorted(each for each in found if each[0] not in OF_OUR_OWN)


# Read no more than one cell, header or address of a hospital's own files, or this program's texts.
OF_OUR_OWN = {
    "client/erosion_client/dataset/preparation.py",
    "client/erosion_client/dataset/sources/databases.py",
    "client/erosion_client/scaffold/column_profile.py",
    "client/erosion_client/scaffold/vocabulary.py",
    "common/erosion_common/support/software.py",
    "common/erosion_common/program/ending.py",
    "server/erosion_server/output/charts.py",
    "server/erosion_server/output/words.py",
}
Item = tuple[Any, Any]


def alphabet(item: Item) -> frozenset[str]:
    """The sample's characters that a part of a pattern can consume."""
    op, _ = item
    if op in LEAVES:
        part = parser.SubPattern(parser.State(), [item])
        one = compiler.compile(part)
        return frozenset(c for c in SAMPLE if one.fullmatch(c))
    return frozenset().union(*(alphabet(inner) for seq in inside(item) for inner in seq))


def inside(item: Item) -> list[list[Item]]:
    """The sequences in a part of a pattern."""
    op, value = item
    if op in REPEATS:
        return [list(value[2])]
    if op is codes.SUBPATTERN:
        return [list(value[3])]
    if op is codes.BRANCH:
        return [list(branch) for branch in value[1]]
    return []  # what looks around, anchors, references


def is_endless(item: Item) -> bool:
    return item[0] in REPEATS and item[1][1] is codes.MAXREPEAT


def flattened(sequence: list[Item]) -> Iterator[list[Item]]:
    """The sequence with groups opened, once for each branch that a group may take."""
    if not sequence:
        yield []
        return
    head, *rest = sequence
    heads: list[list[Item]] = [[head]]
    if head[0] in (codes.SUBPATTERN, codes.BRANCH):
        heads = [flat for inner in inside(head) for flat in flattened(inner)]
    elif head[0] in REPEATS and not is_endless(head) and head[1][1] <= 2:
        heads = [[], *flattened(inside(head)[0])]
    for tail in flattened(rest):
        for start in heads:
            yield [*start, *tail]


def faults(sequence: list[Item], anywhere: bool) -> Iterator[str]:
    for flat in flattened(sequence):
        alphabets = [alphabet(item) for item in flat]
        for at, item in enumerate(flat):
            if not is_endless(item):
                continue
            body = inside(item)[0]
            if any(is_endless(inner) for f in flattened(body) for inner in f) and len(body) == 1:
                yield "an endless part of an endless part"
            for later in range(at + 1, len(flat)):
                between = alphabets[at + 1 : later]
                both = alphabets[at] & alphabets[later]
                if is_endless(flat[later]) and both and all(b & both or not b for b in between):
                    yield "two endless parts that share characters"
            if (
                anywhere
                and at < len(flat) - 1
                and all(before & alphabets[at] or not before for before in alphabets[:at])
            ):
                is_anchored = flat[0][0] is codes.AT
                if not is_anchored and any(alphabets[at + 1 :]):
                    yield "an endless part before another, begun everywhere"


def test_every_pattern_takes_time_in_proportion_to_its_text() -> None:
    patterns = all_patterns()
    assert len(patterns) > 40
    assert not [
        (file, pattern, found)
        for file, pattern, anywhere in patterns
        if (found := [*faults(list(parser.parse(pattern)), anywhere)])
    ]


@pytest.mark.parametrize(
    "pattern", [".*:.*@", r"\s*(\w+?)\s*\w*x", "(a+)+b", "[^'\"/]*:[^'\"]*@", r"\(\s*[^)]+?\s*\)$"]
)
def test_patterns_that_take_longer_are_found(pattern: str) -> None:
    assert [*faults(list(parser.parse(pattern)), True)]
