"""`peers.pem`: the public node keys of the hospitals that a site would be summed with.

Without it the coordinator, which names everybody's keys, could invent hospitals and be all others
in a sum. Each key stands under a line with its hospital's name.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from erosion_common.errors import ErosionError
from erosion_common.settings.names import checked_name
from erosion_common.support.files import read_named
from erosion_common.support.keys import PublicKey, public_pem, read_public_key

NAME = "peers.pem"
_ENTRY = re.compile(
    r"#\s*(?P<name>\S+)\s*\n(?P<pem>-----BEGIN [^\n]*-----\n.*?\n-----END [^\n]*-----)", re.DOTALL
)


def as_text(keys: Mapping[str, PublicKey]) -> str:
    """Return the file's content, by name."""
    return "\n".join(
        f"# {name}\n{public_pem(keys[name]).decode().strip()}\n" for name in sorted(keys)
    )


def read_pinned_keys(path: Path, error: type[ErosionError]) -> dict[str, PublicKey]:
    """Return the keys by name; raises `error` for a missing or malformed file, or a name twice."""
    try:
        content = read_named(path)
    except FileNotFoundError:
        raise error(
            f"There is no {path}, which holds the keys of the other hospitals",
            remedy="It comes with the site kit; sealed.peers in the site file says where it is.",
        ) from None
    except OSError as problem:
        raise error(f"{path} cannot be read: {problem}.") from None
    return parse(content, str(path), error)


def parse(content: bytes, where: str, error: type[ErosionError]) -> dict[str, PublicKey]:
    """Return the keys in such a file's content; `where` is what a message calls it."""
    try:
        text = content.decode()
    except UnicodeDecodeError as problem:
        raise error(f"{where} cannot be read: {problem}.") from None
    keys: dict[str, PublicKey] = {}
    for entry in _ENTRY.finditer(text):
        name = entry["name"]
        try:
            checked_name(name)
        except ValueError as problem:
            raise error(f"{name!r} is no hospital's name; {problem}.", where=where) from None
        if name in keys:
            raise error(
                f"{name} is there twice", where=where, remedy=f"Keep the key that {name} confirms."
            )
        keys[name] = read_public_key(entry["pem"].encode(), f"{where} ({name})", error)
    if not keys or _ENTRY.sub("", text).strip():
        raise error(
            f"{where} is not a list of keys: each stands in PEM under a line with # and its"
            " hospital's name."
        )
    if (shared := problem_with_owners(keys)) is not None:
        raise error(shared, where=where)
    return keys


def problem_with_owners(keys: Mapping[str, PublicKey]) -> str | None:
    """Return which hospitals share one key, and would be several in a sum; None for no such."""
    owners: dict[bytes, str] = {}
    for name in sorted(keys):
        other = owners.setdefault(public_pem(keys[name]), name)
        if other != name:
            return (
                f"{other} and {name} have one and the same key. Every hospital has its own: ask"
                " both for their fingerprints."
            )
    return None
