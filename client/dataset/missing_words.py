"""What programs and people write where a value is missing."""

import tomllib
from pathlib import Path

_FOUND = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
MISSING_MARKERS = frozenset(_FOUND["markers"])  # in small letters
MISSING_WORDS = frozenset(_FOUND["words"])  # the same; only ever proposed
BELOW_A_LIMIT = frozenset(_FOUND["below"])  # the same
DASHES = frozenset(["-", "--", "---", "–", "—"])
