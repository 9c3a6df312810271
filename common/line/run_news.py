"""The run that a request belongs to, where the coordinator runs an app of somebody's own."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from erosion.common.line.frames import LONGEST_TEXT, LineFault

MOST_KEYS = 1000
Plain = str | int | float | bool


@dataclass(frozen=True, slots=True)
class RunNews:
    """A run's number and its settings, which Flower's apps find in their context."""

    number: int
    config: Mapping[str, Plain] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """For the head of a request."""
        return {"number": self.number, "config": dict(self.config)}

    @classmethod
    def read(cls, said: object) -> "RunNews | None":
        """From a head; None where it says nothing of a run. Raises LineFault."""
        match said:
            case None:
                return None
            case {"number": int(number), "config": dict(config)} if len(config) <= MOST_KEYS:
                for key, value in config.items():
                    if not isinstance(value, Plain) or len(f"{key}{value}") > LONGEST_TEXT:
                        raise LineFault(f"a setting {key[:50]!r} of a run that is no plain value")
                return cls(number, config)
            case _:
                raise LineFault("a run without its number and settings")
