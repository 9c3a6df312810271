"""`roster.toml`: every enrolled public key, its hospital and its expiry."""

from pathlib import Path
from typing import Literal, Self

import tomli_w
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from pydantic import AwareDatetime, field_validator, model_validator

from erosion.common.errors import EnrolmentError
from erosion.common.settings.base import Settings, read_toml, validate
from erosion.common.settings.names import Name
from erosion.common.support import expiry
from erosion.common.support.files import write_private
from erosion.common.support.keys import PublicKey, fingerprint, public_pem, read_public_key


class EnrolledKey(Settings):
    """One key. A revoked one stays here, so that its holder is told why it is kept out."""

    hospital: Name
    public_key: str  # PEM
    certificate: str | None = None  # PEM, the latest of this key; None: enrolled without one
    enrolled: AwareDatetime
    revoked: AwareDatetime | None = None
    expires: AwareDatetime  # the last: a file that is cut off makes no revoked key a current one

    @field_validator("public_key")
    @classmethod
    def _canonical(cls, value: str) -> str:
        try:
            key = read_public_key(value.encode(), "public_key", EnrolmentError)
        except EnrolmentError as problem:
            raise ValueError(str(problem)) from None
        return public_pem(key).decode()

    @property
    def key(self) -> PublicKey:
        """The key itself."""
        key = load_pem_public_key(self.public_key.encode())
        return key  # type: ignore[return-value]  # checked when the roster was read

    @property
    def fingerprint(self) -> str:
        """For comparing by telephone."""
        return fingerprint(self.key)

    @property
    def trouble(self) -> str | None:
        """Why the key is not let in now, as the end of "its key ..."; None where it is."""
        if self.revoked is not None:
            return f"was revoked on {self.revoked:%Y-%m-%d}"
        if expiry.has_ended(self.expires):
            return f"expired on {self.expires:%Y-%m-%d}"
        return None


class KeyRegistry(Settings):
    """All keys that were ever enrolled. A hospital has one that is not revoked, or none."""

    format: Literal[1] = 1
    keys: tuple[EnrolledKey, ...] = ()

    @model_validator(mode="after")
    def _unambiguous(self) -> Self:
        current = [key.hospital for key in self.keys if key.revoked is None]
        twice = sorted({name for name in current if current.count(name) > 1})
        if twice:
            raise ValueError(
                f"{', '.join(twice)} has two keys; take one out of the file, or give it the time"
                " from which on it is not let in (revoked = ...)"
            )
        texts = [key.public_key for key in self.keys]
        shared = sorted({key.hospital for key in self.keys if texts.count(key.public_key) > 1})
        if shared:
            raise ValueError(f"one public key stands here twice ({', '.join(shared)})")
        return self

    def current(self, hospital: str) -> EnrolledKey | None:
        """The hospital's key that is not revoked; it may have expired."""
        return next((k for k in self.keys if k.hospital == hospital and k.revoked is None), None)

    def latest(self, hospital: str) -> EnrolledKey | None:
        """The current key, else the one that was enrolled last."""
        others = [key for key in self.keys if key.hospital == hospital]
        return self.current(hospital) or max(others, key=lambda k: k.enrolled, default=None)

    def changed(self, key: EnrolledKey, **values: object) -> "KeyRegistry":
        """The roster with some values of one key replaced."""
        keys = (k.model_copy(update=values) if k == key else k for k in self.keys)
        return KeyRegistry(keys=tuple(keys))

    def added(self, key: EnrolledKey) -> "KeyRegistry":
        """The roster with one key more."""
        return KeyRegistry(keys=(*self.keys, key))


def read_key_registry(path: Path) -> KeyRegistry:
    """Raises EnrolmentError."""
    raw = read_toml(path, "roster", EnrolmentError)
    if not raw:  # else every hospital would be taken for one that was never enrolled
        raise EnrolmentError(f"The roster {path} is empty. Restore it from the backup.")
    return validate(KeyRegistry, raw, f"Membership {path}", EnrolmentError)


def write_key_registry(path: Path, roster: KeyRegistry) -> None:
    """Replace the file; a reader sees either the old registry or the new one."""
    write_private(path, tomli_w.dumps(roster.model_dump(exclude_none=True), multiline_strings=True))
