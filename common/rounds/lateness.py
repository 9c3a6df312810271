"""Hospitals that hold rounds up: they are asked again after pauses that grow."""

from collections.abc import Collection, Mapping
from statistics import median

from erosion.common.aggregation.cohort import HospitalName

_BORNE = 3  # times in a row; from then on there is a pause
# An answer in time is too slow where it took this part of the deadline, and so many times as long
# as those of the others (their median): nobody else can make a hospital look slow by itself.
_SLOW_SHARE, _SLOW_TIMES = 0.5, 10.0


def too_slow(seconds: Mapping[HospitalName, float], deadline: float) -> set[HospitalName]:
    """Who held an exchange up although it answered in time. `seconds`: from request to reply."""
    slow = set()
    for name, own in seconds.items():
        others = [value for other, value in seconds.items() if other != name]
        if others and own >= max(_SLOW_SHARE * deadline, _SLOW_TIMES * median(others)):
            slow.add(name)
    return slow


class Lateness:
    """Who was late in an arm, how many times in a row, and when it is asked again.

    A site may live and never answer, and each round that asks it then lasts until its deadline, or
    nearly until it where it answers just before (`too_slow`, which counts as late). Late for the
    third time in a row it is left out of one round, then of two, four and so on: of a hundred
    rounds nine wait for it, and whoever is slow for a while misses little more than that. What it
    did is judged when a round ends, because it may answer in one exchange and not in the next.
    """

    def __init__(self) -> None:
        # Rounds in a row, the last one, and whether it answered then, too slowly.
        self._late: dict[HospitalName, tuple[int, int, bool]] = {}

    def why_not_asked(self, hospital: HospitalName, round_number: int) -> str | None:
        """Completes "the hospital ..."; None: it is asked."""
        times, last, was_slow = self._late.get(hospital, (0, 0, False))
        if times < _BORNE:
            return None
        again = last + 1 + 2 ** (times - _BORNE)
        if round_number >= again:
            return None
        how = "much slower than the others" if was_slow else "late"
        return f"was {how} {times} times in a row, and is asked again in round {again}"

    def round_ended(
        self,
        number: int,
        late: Collection[HospitalName],
        heard: Collection[HospitalName],
        slow: Collection[HospitalName] = (),
    ) -> None:
        """Take note of who was late or slow in any of its exchanges, and who answered in one."""
        for hospital in heard:
            if hospital not in late and hospital not in slow:
                self._late.pop(hospital, None)
        for hospital in {*late, *slow}:
            times, *_ = self._late.get(hospital, (0,))
            self._late[hospital] = times + 1, number, hospital not in late
