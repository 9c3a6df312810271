"""`records.sqlite`: what one hospital approved, answered and disclosed, and the cost of that.

It is one file, so that an answer's whole use of the budgets is one transaction, and a restored
backup is compared once with the log of what was sent (`recovery`).
"""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from erosion_client.records.answers import AnswerTable, StudyTable
from erosion_client.records.ledgers import DisclosureTable, PrivacyTable, SumTable
from erosion_client.records.private_database import PrivateDatabase
from erosion_common.errors import SiteError
from erosion_common.support.status import left_behind

if TYPE_CHECKING:
    from erosion_client.site_file import Site

VERSION = 1
FILE_NAME = "records.sqlite"

TABLES = Path(__file__).with_name("records.sql")


class Records(PrivateDatabase):
    """The records of one hospital. Every write is on the disk when it returns. Raises SiteError."""

    def __init__(self, folder: Path | None, hospital: str) -> None:
        """Open `folder`/records.sqlite, making both if need be; None: in memory."""
        name = hospital.replace("'", "''")
        super().__init__(
            None if folder is None else folder / FILE_NAME,
            f"{TABLES.read_text()} insert into owner values ('{name}', null);",
            version=VERSION,
            holds="what this site approved, answered and disclosed, and its budgets",
            without="Nothing is answered without it.",
        )
        self.studies = StudyTable(self)
        self.answers = AnswerTable(self)
        self.disclosures = DisclosureTable(self)
        self.privacy = PrivacyTable(self)
        self.sums = SumTable(self)
        self._check_owner(hospital)

    @classmethod
    def of(cls, site: "Site") -> "Records":
        """Open a site's; in memory where its site file has no folder, as in simulations."""
        folder = site.consent_folder
        return cls(None if site.compute.state is None else folder, site.account)

    @classmethod
    def existing(cls, site: "Site") -> "Records":
        """Open a site's for reading; where it has none, empty ones that are never written."""
        exists = (site.consent_folder / FILE_NAME).exists()
        return cls(site.consent_folder if exists else None, site.account)

    def check_secret(self, secret: bytes, *, first: bool = True) -> None:
        """Raise SiteError where patients were noted with another secret: none were recognised.

        `first`: whether it is noted where there is none.
        """
        name = hashlib.sha256(b"erosion book" + secret).hexdigest()
        with self.transaction():
            if first:
                self.execute("update owner set secret = ? where secret is null", (name,))
            ((known,),) = self.execute("select secret from owner")
        if known not in (None, name):
            raise SiteError(
                f"{self.path} was made with another secret.key than lies in its folder, and no"
                " patient would be recognised",
                remedy="Restore both from one backup. Where the secret is lost, move the whole"
                " folder away: the site starts with no approvals and budgets.",
            )

    def log_was_read_to(self, log: Path) -> tuple[bool, int]:
        """Return whether these records were compared with this log, and with lines up to which."""
        found = self.execute("select line from log_read where log = ?", (_log_name(log),))
        return bool(found), int(found[0][0]) if found else 0

    def note_log_read(self, log: Path, line: int) -> None:
        """Note that the log was read up to this line."""
        self.execute("insert or replace into log_read values (?, ?)", (_log_name(log), line))

    def num_noted(self) -> int:
        """Return the number of decisions and disclosed sets of patients; none is ever removed."""
        tables = "decisions", "disclosures", "cohorts"
        rows = [self.execute(f"select coalesce(max(rowid), 0) from {table}") for table in tables]
        return sum(int(found[0][0]) for found in rows)

    def forgotten(self, status: Path) -> Iterator[str]:
        """Yield what these records lack by the status that this site's last program left."""
        known, noted = self.num_noted(), left_behind(status).get("noted")
        if isinstance(noted, int) and known < noted:
            yield (
                f"{self.path or 'The memory'} has {known} decisions and disclosures, and {status}"
                f" knows of {noted}: it was restored from an older backup, or copied without its"
                " -wal. Restore the latest copy. If there is none, decide again on the studies that"
                " were approved or declined since; figures about nearly the same patients may"
                " leave again"
            )

    def _check_owner(self, hospital: str) -> None:
        owners = self.execute("select hospital from owner")
        if owners != [(hospital,)]:
            self.close()
            known = " and ".join(str(name) for (name,) in owners) or "no hospital"
            raise SiteError(
                f"{self.path} holds the records of {known}, and this is {hospital}",
                remedy=f"Name another folder in the site file of {hospital}: compute.state.",
            )


def _log_name(log: Path) -> str:
    return hashlib.sha256(os.path.realpath(log).encode(errors="surrogateescape")).hexdigest()
