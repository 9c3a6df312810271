"""How names, values and numbers stand in a draft."""

import json

import numpy as np

from erosion.client.dataset.column_values import toml_key

FEWEST = 10  # patients; a category of fewer is pointed out before the file is handed on


def quoted(text: str) -> str:
    """As TOML has it, in one line."""
    return f'"{escaped(text)}"'


def missing_line(text: str, column: str) -> str:
    """What a site file writes where a text stands for a missing value."""
    return f'{quoted(text)} = "" under [data.values.{toml_key(column)}]'


def escaped(text: str) -> str:
    """As TOML has it between quotation marks, in one line."""
    return json.dumps(text, ensure_ascii=False)[1:-1].replace("\x7f", "\\u007f")


def short(value: float) -> str:
    """With two significant digits."""
    return repr(float(np.format_float_positional(float(f"{value:.2g}"), trim="0")))
