"""The studies that a hospital was asked about, and every decision about them."""

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, get_args

from erosion_client.records.private_database import PrivateDatabase

MOST_PENDING = 100  # studies that wait for a person; beyond, a new one is refused and not kept

State = Literal["pending", "approved", "declined"]

STUDY_TABLES = """
create table studies (
  digest text primary key,
  name text not null,
  content text not null,
  coordinator text not null,
  asked text not null
);
create table decisions (
  digest text not null,
  state text not null,
  decided_by text not null,
  decided text not null
);
create index decisions_of_studies on decisions (digest);
"""

_LATEST = """
select s.digest, s.name, s.content, s.coordinator, s.asked,
  coalesce(d.state, 'pending'), coalesce(d.decided_by, ''), coalesce(d.decided, '')
from studies s left join decisions d
  on d.rowid = (select max(rowid) from decisions where digest = s.digest)
"""


@dataclass(frozen=True, slots=True)
class StudyEntry:
    """One study that this site was asked about, with the latest decision about it."""

    digest: str
    name: str
    content: str  # its canonical JSON
    coordinator: str  # that asked first
    asked: str  # when, UTC
    state: State
    decided_by: str  # a person's name, or the rule that decided
    decided: str  # when, UTC; empty while pending


class StudyTable:
    """Studies and decisions in a hospital's records."""

    def __init__(self, file: PrivateDatabase) -> None:
        """Read and write `file`, which has STUDY_TABLES."""
        self._file = file

    def get(self, digest: str) -> StudyEntry | None:
        """Return the entry of one study."""
        return next(iter(self._select("where s.digest = ?", digest)), None)

    def all(self, state: State | None = None) -> list[StudyEntry]:
        """Return every study, or those in one state; the latest first."""
        entries = self._select("order by s.asked desc, s.digest")
        return [entry for entry in entries if state in (None, entry.state)]

    def decided(self) -> list[StudyEntry]:
        """Return every study with a decision, the latest decision first."""
        return self._select("where d.rowid is not null order by d.rowid desc")

    def decided_first(self) -> list[StudyEntry]:
        """Return the same, with the study first that was decided about first."""
        return self._select(
            "where d.rowid is not null order by"
            " (select min(rowid) from decisions where digest = s.digest)"
        )

    def num_decisions(self) -> int:
        """Return the number of decisions."""
        ((number,),) = self._file.execute("select count(*) from decisions")
        return int(number)

    def put(self, entry: StudyEntry) -> None:
        """Write a new study, and the decision that the entry has."""
        with self._file.transaction():
            self._file.execute(
                "insert or ignore into studies values (?,?,?,?,?)",
                (entry.digest, entry.name, entry.content, entry.coordinator, entry.asked),
            )
            if entry.decided:
                self._file.execute(
                    "insert into decisions values (?,?,?,?)",
                    (entry.digest, entry.state, entry.decided_by, entry.decided),
                )

    def decisions(self, digest: str) -> list[tuple[str, str, str]]:
        """Return the decisions about a study in order: state, person or rule, and time."""
        return self._file.execute(
            "select state, decided_by, decided from decisions where digest = ? order by rowid",
            (digest,),
        )

    def _select(self, clause: str, *values: str) -> list[StudyEntry]:
        entries = [StudyEntry(*row) for row in self._file.execute(f"{_LATEST} {clause}", values)]
        for entry in entries:
            content = hashlib.sha256(entry.content.encode()).hexdigest()
            # A person approves what was shown, and the digest identifies it.
            if entry.state not in get_args(State) or content != entry.digest:
                raise self._file.unusable(f"study {entry.digest:.12} is not as it was written")
        return entries


def now() -> str:
    """Return the current time as it is written: UTC, to the second."""
    return datetime.now(UTC).isoformat("T", "seconds")
