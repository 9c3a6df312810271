"""Hospitals that were missing, by arm: arms compare only if they had the same hospitals."""

from collections.abc import Mapping, Sequence

from erosion.common.rounds.records import RoundRecord
from erosion.common.settings.base import Settings

MISSED = ("absent", "rejected")  # outcomes of a hospital that was wanted and gave nothing


class Absent(Settings):
    """A hospital whose update was wanted in a round and is not in it."""

    hospital: str
    rounds: dict[str, int]  # arm -> rounds missed, of arms that it missed any of; folds' included
    wanted: dict[str, int]  # arm -> rounds in which it was wanted, of the same arms
    everywhere: bool  # it gave nothing to any arm
    reason: str  # the latest, completing "the hospital ..."
    arms_differ: bool = False  # arms that wanted it went without it in different rounds


def absences(
    hospitals: Sequence[str], user: str, records: Mapping[str, Sequence[RoundRecord]]
) -> tuple[Absent, ...]:
    """Every peer that an arm went without, as the rounds' records have it; by arm."""
    found = []
    for name in hospitals:
        entries = {
            arm: [r.hospitals[name] for r in of_arm if name in r.hospitals]
            for arm, of_arm in records.items()
        }
        missed = {arm: [e for e in es if e.outcome in MISSED] for arm, es in entries.items()}
        if name == user or not any(missed.values()):
            continue
        short = {arm: es for arm, es in missed.items() if es}
        when = [
            [
                at
                for at, record in enumerate(of_arm)
                if name in record.hospitals and record.hospitals[name].outcome in MISSED
            ]
            for arm, of_arm in records.items()
            if any(entry.outcome != "not_asked" for entry in entries[arm])
        ]
        gave = any(e.outcome == "accepted" for es in entries.values() for e in es)
        found.append(
            Absent(
                hospital=name,
                rounds={arm: len(es) for arm, es in short.items()},
                wanted={arm: sum(e.outcome != "not_asked" for e in entries[arm]) for arm in short},
                everywhere=not gave,
                reason=list(short.values())[-1][-1].reason,
                arms_differ=any(rounds != when[0] for rounds in when),
            )
        )
    return tuple(found)
