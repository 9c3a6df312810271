"""The pace at which a site answers what no budget bounds: a flood of it does not fill the disk."""

from dataclasses import dataclass

BYTES_EACH = 1024  # of an answer's words: a longer one counts for several


@dataclass
class _Allowance:
    """So many answers at once, and one more after every so many seconds."""

    most: float
    seconds_each: float
    left: float
    since: float = 0.0

    def seconds_to_wait(self, now: float, cost: float) -> float:
        self.left = min(self.most, self.left + (now - self.since) / self.seconds_each) - cost
        self.since = now
        return 0.0 if self.left >= 0 else -self.left * self.seconds_each


class ErrorPace:
    """Counts a site's answers that are errors, introductions, confirm a notice or are repeated.

    100 are answered at once and then one a second; of 2,000 a day, and then one in 40 seconds.
    """

    def __init__(self) -> None:
        self._allowances = (
            _Allowance(most=100, seconds_each=1.0, left=100),
            _Allowance(most=2000, seconds_each=40.0, left=2000),
        )

    def seconds_to_wait(self, now: float, num_bytes: int = 0) -> float:
        """Before the next request is looked at, after such an answer at `now`, in seconds.

        `num_bytes`: of the words in it.
        """
        cost = max(1.0, num_bytes / BYTES_EACH)
        return max(each.seconds_to_wait(now, cost) for each in self._allowances)
