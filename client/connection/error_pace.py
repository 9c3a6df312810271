"""The pace at which a site answers what no budget bounds: a flood of it does not fill the log."""

BURST = 100  # of them in a row that are answered at once
SECONDS_EACH = 1.0  # for every further one


class ErrorPace:
    """Counts a site's answers that are errors, introductions, confirm a notice or are repeated."""

    def __init__(self) -> None:
        self._left, self._since = float(BURST), 0.0

    def seconds_to_wait(self, now: float) -> float:
        """Before the next request is looked at, after such an answer at `now`, in seconds."""
        self._left = min(BURST, self._left + (now - self._since) / SECONDS_EACH) - 1
        self._since = now
        return 0.0 if self._left >= 0 else -self._left * SECONDS_EACH
