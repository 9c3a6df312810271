"""`contributions.csv`: hospitals' contributions to each arm (Grimberg et al. 2020, incentives)."""

import csv
import io
from collections.abc import Mapping, Sequence

from erosion.common.rounds.records import RoundRecord
from erosion.server.run.result import Contribution

COLUMNS = ("arm", "hospital", "rounds", "weight_sum", "samples_seen")


def contributions(
    hospitals: Sequence[str], records: Sequence[RoundRecord]
) -> dict[str, Contribution]:
    """Of one arm: rounds taken part in, the weight summed over them, and the samples used.

    A round that was undone is in no model, and counts for nobody.
    """
    undone = {record.undoes for record in records}
    counting = [r for r in records if r.outcome == "done" and r.round not in undone]
    ledger: dict[str, Contribution] = {}
    for name in hospitals:
        entries = [record.hospitals.get(name) for record in counting]
        accepted = [e for e in entries if e is not None and e.outcome == "accepted"]
        ledger[name] = Contribution(
            rounds=len(accepted),
            weight_sum=sum(e.weight_after or 0.0 for e in accepted),
            samples_seen=sum(e.samples_seen or 0 for e in accepted),
        )
    return ledger


def as_csv(ledgers: Mapping[str, Mapping[str, Contribution]]) -> str:
    """The ledgers by arm as one table, one line for each hospital of each arm."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for arm, ledger in ledgers.items():
        for hospital, given in ledger.items():
            row = (arm, hospital, given.rounds, f"{given.weight_sum:.6g}", given.samples_seen)
            writer.writerow(row)
    return text.getvalue()
