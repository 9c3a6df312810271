"""One line of the log of what a hospital sent."""

import hashlib

from pydantic import Field, JsonValue

from erosion.common.settings.base import Settings

FIRST = "0" * 64  # the first line's `previous`
MOST_VALUES = 16  # of an array that is written down itself


class AuditEntry(Settings):
    """One message handed to the network; its SHA-256 stands for arrays, which may be large."""

    number: int  # from 1
    time: str  # ISO 8601, UTC
    hospital: str = ""  # that sent it
    dataset: str = ""  # what its account calls the data that it answered from; "" for an app
    kind: str  # of the request that this answers: query.describe, train, evaluate, query.notice
    study: str | None  # the name of the approved study that the request is of
    digest: str | None = None  # SHA-256 of the study
    run: str | None
    arm: str | None
    round: int | None
    exchange: int | None = None  # the step's place in its round; None in lines of earlier programs
    bytes: int  # of the header, then the arrays as little-endian numbers by name; of an app of the
    # site's own: of the description of its records, then the arrays as it serialised them
    sha256: str  # of the same
    arrays: dict[str, tuple[int, ...]] = Field(default_factory=dict)  # name -> shape
    values: dict[str, tuple[float | None, ...]] = Field(default_factory=dict)  # of arrays of up to
    # 16 numbers, flat; None: not finite. Lines of earlier programs have none
    norm: float | None = None  # Euclidean, of the update; None where there is none or not finite
    figures: JsonValue = None  # the header itself: the sums, counts and metrics that were sent; of
    # an app of the site's own, the description. Earlier programs left out those of more than 256 kB
    error: str | None = None  # the words that were sent in place of an answer
    previous: str  # SHA-256 of the line before

    @property
    def text(self) -> str:
        """The line without its newline: the next line's `previous` is its hash."""
        return self.model_dump_json()


def hash_of(text: str) -> str:
    """SHA-256 of `text` in UTF-8, hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()
