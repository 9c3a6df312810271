"""Keys for sealed rounds where no hospital was enrolled: in a simulation and in the testbed."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from erosion.client.sealed.sealed_site import SealedIdentity
from erosion.client.training.hospital import Hospital
from erosion.common.sealed import pinned_keys
from erosion.common.support.files import write_private
from erosion.common.support.keys import new_private_key, private_pem

KEY = "node.key"


def introduce(hospitals: Mapping[str, Hospital]) -> None:
    """Give every hospital a fresh key, and the others' public ones."""
    keys = {name: new_private_key() for name in hospitals}
    public = {name: key.public_key() for name, key in keys.items()}
    for name, hospital in hospitals.items():
        hospital.identify(SealedIdentity(name, keys[name], public))


def write_identities(folder: Path, names: Sequence[str]) -> None:
    """The same as files, in a folder for each."""
    keys = {name: new_private_key() for name in names}
    public = {name: key.public_key() for name, key in keys.items()}
    for name, key in keys.items():
        write_private(folder / name / KEY, private_pem(key))
        others = {other: public[other] for other in names if other != name}
        (folder / name / pinned_keys.NAME).write_text(pinned_keys.as_text(others))
