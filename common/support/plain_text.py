"""Text from elsewhere made safe to show."""

from collections import Counter
from collections.abc import Iterable


def printable(text: str, *, at_most: int = 300) -> str:
    """`text` on one line, without control characters, and not endless.

    A hospital's message is shown on the user's terminal: escape codes in it could rewrite the
    screen, and marks of text direction could turn a sentence around.
    """
    clean = "".join(c if c.isprintable() else "�" for c in " ".join(text.split()))
    return clean if len(clean) <= at_most else clean[: at_most - 1] + "…"


def shown(text: str) -> str:
    """`text` with its lines, without what could rewrite a screen or turn a line around."""
    return "\n".join(
        "".join(c if c.isprintable() else "\ufffd" for c in line) for line in text.split("\n")
    )


def most_said(reasons: Iterable[str]) -> str:
    """The reason that most gave, to follow what it is the reason for; "" where nobody gave any."""
    ordered = Counter(sorted(reasons)).most_common(1)
    return "".join(f"; what most hospitals say: {reason.rstrip('.')}" for reason, _ in ordered)
