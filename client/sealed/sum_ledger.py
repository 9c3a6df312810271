"""The uses of a site's updates: on disk before anything that depends on one leaves."""

from pathlib import Path

from erosion.common.errors import Refusal
from erosion.common.support.private_database import PrivateDatabase

MOST_DISTANCES = 3  # of one update
NAME = "sealed-sums.sqlite"

_TABLES = """
create table if not exists uses (what blob primary key, use blob);
create table if not exists distances (of_update blob primary key, given integer);
"""


class SumLedger:
    """Remembers for good; two programs on one folder see the same. Not for several threads."""

    def __init__(self, folder: Path | None) -> None:
        """A file in `folder`; None: in memory, which is for simulations. Raises SiteError."""
        self._file = PrivateDatabase(
            None if folder is None else folder / NAME,
            _TABLES,
            version=1,
            holds="which sums this site's updates were in",
            without="It takes no part in sealed rounds without it, because an update might enter a"
            " second sum.",
        )

    def check(self, what: bytes, use: bytes, why_not: str) -> None:
        """Raises Refusal with `why_not` where `what` was used for something else."""
        known = self._file.execute("select use from uses where what = ?", (what,))
        if known and known[0][0] != use:
            raise Refusal(why_not)

    def commit(self, what: bytes, use: bytes, why_not: str) -> None:
        """Note the use; on disk when this returns. Raises Refusal as `check` does."""
        self._file.execute("insert or ignore into uses values (?, ?)", (what, use))
        self.check(what, use, why_not)

    def count_distance(self, of_update: bytes) -> None:
        """Note one more answer; on disk when this returns. Raises Refusal beyond the last."""
        ((given,),) = self._file.execute(
            "insert into distances values (?, 1)"
            " on conflict (of_update) do update set given = given + 1 returning given",
            (of_update,),
        )
        if given > MOST_DISTANCES:
            raise Refusal(
                f"{MOST_DISTANCES} distances of this update were given already; it takes no more."
            )

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()
