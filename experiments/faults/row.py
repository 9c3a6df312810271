"""One row of the table, taken from the journal and from what the programs said."""

import re
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from erosion.experiments.faults.network import COORDINATOR
from erosion.experiments.faults.stage import Seen, Stage

_NEWS = re.compile(  # of all that the programs say; how far a study is would be no news
    r"^erosion: |^round |joined|lost its connection|absent|rejected|skipped|not take part"
    r"|connected to|the coordinator at|^Listening|key|waiting for|goes on",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Row:
    """What one fault cost."""

    fault: str
    coordinator_says: tuple[str, ...]
    site_says: tuple[str, ...]
    journal_says: tuple[str, ...]  # why the site was not part of a round, and of how many
    rounds_lost: int  # begun, but without effect on the model
    rounds_without_site: int | None  # done without the site that has the fault
    seconds_to_go_on: float | None  # from the fault to the next round that was done
    seconds_to_recover: float | None  # from the cause's end to the site's next accepted update

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


@dataclass
class Observation:
    """Begin it when the fault happens."""

    stage: Stage
    name: str
    site: str | None = None  # that has the fault; None: the coordinator
    at: float = field(default_factory=time.monotonic)
    mended_at: float | None = None
    _marks: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._marks = {name: program.mark for name, program in self.stage.programs.items()}

    def repaired(self) -> None:
        """The cause is gone: from here on the time to recover counts."""
        self.mended_at = time.monotonic()

    def wait_until_back(self) -> None:
        """Until an update of the site is accepted again."""
        self.stage.first(self._is_back, self.mended_at or self.at)

    def row(self, *, said_by: str | None = None) -> Row:
        """All that was seen since; `said_by` is whose log to quote, the site's own by default."""
        after = [seen for seen in self.stage.rounds if seen.at > self.at]
        went_on = next((seen for seen in after if seen.is_done), None)
        since = self.mended_at
        back = next((s for s in after if since and s.at > since and self._is_back(s)), None)
        until = back.at if back else float("inf")
        without = [s for s in after if s.is_done and s.at < until and not self._is_back(s)]
        return Row(
            fault=self.name,
            coordinator_says=self._said(COORDINATOR),
            site_says=self._said(said_by or self.site or ""),
            journal_says=self._reasons(after),
            rounds_lost=sum(not seen.is_done for seen in after),
            rounds_without_site=len(without) if self.site else None,
            seconds_to_go_on=went_on.at - self.at if went_on else None,
            seconds_to_recover=back.at - since if back and since else None,
        )

    def _reasons(self, after: list[Seen]) -> tuple[str, ...]:
        if self.site is None:
            return ()
        entries = [seen.line["hospitals"][self.site] for seen in after]
        counts = Counter(f"{e['outcome']}: {e['reason']}" for e in entries if e["reason"])
        return tuple(
            f"{self.site} {words} ({count} {'round' if count == 1 else 'rounds'})"
            for words, count in counts.items()
        )

    def _is_back(self, seen: Seen) -> bool:
        return seen.has(self.site) if self.site else seen.is_done

    def _said(self, who: str) -> tuple[str, ...]:
        program = self.stage.programs.get(who)
        if program is None:
            return ()
        lines = [
            line.replace(str(self.stage.folder), "").replace(self.stage.address, "COORDINATOR:PORT")
            for line in program.lines(self._marks.get(who, 0))
            if _NEWS.search(line)
        ]
        return tuple(dict.fromkeys(lines))
