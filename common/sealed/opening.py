"""The opening of a masked update, to be shown by a person: the update, its masks' secrets."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from erosion.common.errors import ErosionError


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Opening:
    """One hospital's part of one sum."""

    name: str  # of the hospital
    view: str  # hash of what the hospitals were told, hexadecimal
    update: NDArray[np.float32]  # (dim,)
    seed: bytes  # of the self mask
    mask_key: bytes

    def write(self, path: Path) -> None:
        """As a safetensors file, without another copy of the update. Raises OSError."""
        about = {
            "name": self.name,
            "view": self.view,
            "seed": self.seed.hex(),
            "mask_key": self.mask_key.hex(),
        }
        try:
            safetensors.numpy.save_file({"update": self.update}, path, metadata=about)
        except safetensors.SafetensorError as problem:  # what its file operations raise
            raise OSError(str(problem)) from None


def read_opening(path: Path, error: type[ErosionError]) -> Opening:
    """Read what `write` wrote; raises `error`."""
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            about = file.metadata() or {}
            update = file.get_tensor("update")
        opening = Opening(
            about["name"],
            about["view"],
            update,
            bytes.fromhex(about["seed"]),
            bytes.fromhex(about["mask_key"]),
        )
    except (OSError, KeyError, ValueError, safetensors.SafetensorError) as problem:
        raise error(f"{path} is not an opening that can be read ({problem}).") from None
    if update.dtype != np.float32 or update.ndim != 1:
        raise error(f"{path} holds {update.dtype} of shape {update.shape}, which is no update.")
    return opening
