"""Hospitals that let rounds wait in vain: they are asked again after pauses that grow."""

from collections.abc import Collection

from erosion.common.aggregation.cohort import HospitalName

_BORNE = 3  # times in a row; from then on there is a pause


class Lateness:
    """Who was late in an arm, how many times in a row, and when it is asked again.

    A site may live and never answer, and each round that asks it then lasts until its deadline.
    Late for the third time in a row it is left out of one round, then of two, four and so on: of a
    hundred rounds nine wait for it, and whoever is slow for a while misses little more than that.
    What it did is judged when a round ends, because it may answer in one exchange and not in the
    next.
    """

    def __init__(self) -> None:
        self._late: dict[HospitalName, tuple[int, int]] = {}  # rounds in a row, and the last one

    def why_not_asked(self, hospital: HospitalName, round_number: int) -> str | None:
        """Completes "the hospital ..."; None: it is asked."""
        times, last = self._late.get(hospital, (0, 0))
        if times < _BORNE:
            return None
        again = last + 1 + 2 ** (times - _BORNE)
        if round_number >= again:
            return None
        return f"was late {times} times in a row, and is asked again in round {again}"

    def round_ended(
        self, number: int, late: Collection[HospitalName], heard: Collection[HospitalName]
    ) -> None:
        """Take note of who was late in any of its exchanges, and who answered in one."""
        for hospital in heard:
            if hospital not in late:
                self._late.pop(hospital, None)
        for hospital in late:
            times, _ = self._late.get(hospital, (0, 0))
            self._late[hospital] = times + 1, number
