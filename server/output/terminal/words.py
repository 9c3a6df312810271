"""The sentences that the live and the plain progress share."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from erosion.common.rounds.selection import folds_of
from erosion.common.study.study import Study
from erosion.common.support.software import software_version
from erosion.server.output.plain_text import printable
from erosion.server.output.round_news import News

MOST_NAMES = 6  # named in one line; the rest are counted


def opening(study: Study, address: str, run_folder: Path) -> list[str]:
    """What is about to happen."""
    arms = ", ".join(study.arms)
    hospitals = "1 hospital" if len(study.hospitals) == 1 else f"{len(study.hospitals)} hospitals"
    rounds = "1 round" if study.rounds == 1 else f"{study.rounds} rounds"
    folds = len(folds_of(study))
    first = f"; before that {folds} folds, each a run of its own" if folds else ""
    return [
        f"Study {study.name} for {study.user}: {hospitals}, {rounds} of each arm ({arms}){first}",
        f"Listening on {address}; the run is kept in {run_folder}",
    ]


def joined(hospital: str, num_samples: int, software: str = "") -> str:
    """A hospital came; versions are named where the two sides' differ."""
    samples = "1 training sample" if num_samples == 1 else f"{num_samples} training samples"
    ours = software_version()
    differing = f" (erosion {software}, here {ours})" if software not in ("", ours) else ""
    return f"{_name(hospital)} joined with {samples}{differing}"


def waiting(missing: Sequence[str]) -> str:
    """Who is still missing; "" where nobody is."""
    if not missing:
        return ""
    names = [_name(hospital) for hospital in missing[:MOST_NAMES]]
    more = [f"{len(missing) - MOST_NAMES} more"] if len(missing) > MOST_NAMES else []
    return f"waiting for {', '.join(names + more)}"


def stands_still(hospitals: Sequence[str], since: datetime) -> str:
    """For whom the study waits, and since when; or that it goes on."""
    if not hospitals:
        return "the study goes on"
    return f"{waiting(hospitals)} since {since.astimezone():%H:%M}"


def begun_without(absent: Mapping[str, str]) -> str:
    """Who does not take part from the start."""
    named = [f"{_name(who)} ({printable(why)})" for who, why in list(absent.items())[:MOST_NAMES]]
    more = [f"{len(absent) - MOST_NAMES} more"] if len(absent) > MOST_NAMES else []
    return f"Begins without {', '.join(named + more)}"


def declined(hospital: str, reason: str) -> str:
    """A hospital does not take part."""
    return f"{_name(hospital)} does not take part: {printable(reason)}"


def left(hospital: str) -> str:
    """A hospital went."""
    return f"{_name(hospital)} lost its connection"


def user_failed(user: str, reason: str) -> str:
    """A hospital gets no model, where every hospital is to have one."""
    return f"No model for {_name(user)}: {printable(reason)}"


def news(found: News) -> str:
    """One piece of news of a round."""
    who = f"{found.hospital} " if found.hospital else ""
    return f"round {found.round}: {who}{found.text.removeprefix('round ')}"


def _name(hospital: str) -> str:
    return printable(hospital, at_most=48)
