"""The opening of a masked update, to be shown by a person: the update, its masks' secrets."""

import json
import struct
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from erosion.common.errors import ErosionError
from erosion.common.formats.tensor_file import read_tensors
from erosion.common.sealed.masks.key_agreement import KEY_BYTES
from erosion.common.settings.names import checked_name
from erosion.common.support.text import printable


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Opening:
    """One hospital's part of one sum."""

    name: str  # of the hospital
    view: str  # hash of what the hospitals were told, hexadecimal
    update: NDArray[np.float32]  # (dim,)
    seed: bytes  # of the self mask
    mask_key: bytes

    def write(self, path: Path) -> None:
        """As a safetensors file. Raises OSError.

        Every round writes one, so by the format's own rules: its library copies the update twice.
        """
        about = {
            "name": self.name,
            "view": self.view,
            "seed": self.seed.hex(),
            "mask_key": self.mask_key.hex(),
        }
        content = np.ascontiguousarray(self.update, "<f4").data.cast("B")
        place = {"dtype": "F32", "shape": [len(self.update)], "data_offsets": [0, len(content)]}
        header = json.dumps({"__metadata__": about, "update": place}).encode()
        header += b" " * (-len(header) % 8)  # so that the values are aligned
        with path.open("wb", buffering=0) as file:
            for part in (struct.pack("<Q", len(header)), header, content):
                _write_all(file, part)


def _write_all(file: FileIO, content: bytes | memoryview) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[file.write(rest) :]


def _secret(text: str) -> bytes:
    secret = bytes.fromhex(text)
    if len(secret) != KEY_BYTES:
        raise ValueError(f"a secret of {len(secret)} bytes, expected {KEY_BYTES}")
    return secret


def read_opening(path: Path, error: type[ErosionError]) -> Opening:
    """Read what `write` wrote; raises `error`."""
    try:
        about, tensors = read_tensors(path)
        update = tensors["update"]
        name = checked_name(about["name"])
        view = about["view"]
        seed, mask_key = _secret(about["seed"]), _secret(about["mask_key"])
    except (OSError, KeyError, ValueError) as why:
        raise error(f"{path} is not an opening that can be read ({printable(str(why))}).") from None
    if update.dtype != torch.float32 or update.ndim != 1:
        kind = str(update.dtype).removeprefix("torch.")
        raise error(f"{path} holds {kind} of shape {tuple(update.shape)}, which is no update.")
    return Opening(name, view, update.numpy(), seed, mask_key)
