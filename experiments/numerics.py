"""Which changes of the program changed the figures that a run gives.

A cell keeps how many of them its program had. Add one at the end, with its reason, whenever the
figures of a run change for the same study, data and seed: cells from before it are then stale.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


def _every_cell(_config: Mapping[str, Any]) -> bool:
    return True


def _patients_with_several_rows(config: Mapping[str, Any]) -> bool:
    """Of the user's. Rows that are the same, or nearly, count as one patient's."""
    study, user = config.get("study"), config.get("user")
    return (
        user == "va"
        or (study == "titanic" and user != "age-unknown")
        or (study == "ham10000" and user != "vidir_molemax")
    )


@dataclass(frozen=True, slots=True)
class Change:
    """One change of the figures."""

    reason: str  # one line, as a page quotes it
    concerns: Callable[[Mapping[str, Any]], bool] = _every_cell  # by a cell's own settings


NUMERICS: Sequence[Change] = (
    Change("cells kept what they were made with"),
    Change(
        "the noise of a simulation followed from seed, hospital and round",
        lambda config: bool(config.get("privacy")),
    ),
    Change(
        "all rows of a patient drew one lot and gave one prediction", _patients_with_several_rows
    ),
    Change("images that look alike counted as one patient", lambda config: "pattern" in config),
)
