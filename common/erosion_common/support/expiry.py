"""The remaining lifetime of a key or certificate, in words."""

from datetime import UTC, date, datetime, timedelta

WARNING = timedelta(days=30)  # how long before the end people are warned


def now() -> datetime:
    """Return this machine's clock, in UTC and whole seconds."""
    return datetime.now(UTC).replace(microsecond=0)


def precise_now() -> datetime:
    """Return this machine's clock, in UTC."""
    return datetime.now(UTC)


def ends_soon(expires: datetime) -> bool:
    """Return whether people should be warned: it ends within WARNING, or has ended."""
    return expires - now() <= WARNING


def has_ended(expires: datetime) -> bool:
    """Return whether it is too late."""
    return expires <= now()


def in_words(expires: datetime) -> str:
    """Return for example "valid until 2026-10-01 (89 days)"."""
    day = expires.astimezone(UTC).strftime("%Y-%m-%d")
    left = expires - now()
    if left <= timedelta(0):
        return f"expired on {day}"
    return f"valid until {day} ({_count(left)})"


class OnceADay:
    """For what is looked at again by a program that runs for months."""

    def __init__(self) -> None:
        self._day: date | None = None

    def is_due(self) -> bool:
        """Return whether this is the first question, or the first of a new day."""
        today = now().date()
        is_due, self._day = today != self._day, today
        return is_due


def span(time: timedelta) -> str:
    """Return how long it is, without its sign: "365 days"."""
    seconds = abs(time.total_seconds())
    for unit, length in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.1f} s"


def _count(left: timedelta) -> str:
    days = round(left / timedelta(days=1))
    if days <= 1:
        return "a day" if days else "less than a day"
    return f"{days} days"
