"""What is said of a round of GEMS: who has a model in common, and who would accept the result."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Protocol

import torch
from torch import Tensor

from erosion.common.aggregation.cohort import HospitalName
from erosion.common.gems.balls import problem_with_radius
from erosion.common.gems.intersection import Meeting


@dataclass(frozen=True, slots=True)
class SentBall:
    """What a hospital sends of its ball, its model being the centre."""

    hospital: HospitalName
    radius: float
    certified: float
    accuracy: float  # of its own model, on patients held out
    needed: float  # epsilon

    @property
    def problem(self) -> str | None:
        """Why the ball cannot be believed, or None."""
        return problem_with_radius(self.radius)

    @property
    def usable_radius(self) -> float:
        """The radius, or 0 where it cannot be believed."""
        return 0.0 if self.problem else self.radius

    @property
    def tensor(self) -> Tensor:
        """As an attachment: (4,) float32."""
        return torch.tensor([self.radius, self.certified, self.accuracy, self.needed])


NUMBERS = 4  # of a ball's attachment


def sent_ball(hospital: HospitalName, attachment: Tensor) -> SentBall:
    """The ball of an attachment (4,)."""
    return SentBall(hospital, *attachment.tolist())


def in_words(sent: Sequence[SentBall], apart: Tensor, meeting: Meeting) -> str:
    """Which balls meet, and by how much the model misses the others.

    `apart` (k, k) are the distances between the centres.
    """
    believed = [number for number, ball in enumerate(sent) if ball.problem is None]
    sentences = [f"{ball.hospital} is left out: {ball.problem}" for ball in sent if ball.problem]
    sentences += [
        f"{ball.hospital} reaches {ball.accuracy:.2f} and asks for {ball.needed:.2f}, so nothing"
        " but its own model is in its ball"
        for ball in sent
        if ball.problem is None and ball.accuracy < ball.needed - 1e-6
    ]
    if meeting.in_all:
        sentences.append(f"the model found lies in the balls of all {len(believed)} hospitals")
        return "; ".join(sentences)
    missed = [
        f"{sent[n].hospital} by {float(meeting.gaps[n]):.2g}"
        for n in believed
        if float(meeting.gaps[n]) > 0
    ]
    sentences.append(f"no model was found in all balls: the one taken misses {_list(missed)}")
    for one, other in combinations(believed, 2):
        reach = sent[one].radius + sent[other].radius
        if float(apart[one, other]) > reach * (1 + 1e-6):
            sentences.append(
                f"{sent[one].hospital} and {sent[other].hospital} have no model in common that is"
                " good enough for both"
            )
    return "; ".join(sentences)


class Check(Protocol):
    """What a hospital found of the model, on the patients that it held out."""

    accuracy: float
    needed: float


def checks_in_words(
    found: Mapping[HospitalName, Check], missing: Mapping[HospitalName, str]
) -> str:
    """What the hospitals' own checks say of the model."""
    refused = [
        f"{name} ({check.accuracy:.2f}, asked for {check.needed:.2f})"
        for name, check in found.items()
        if check.accuracy < check.needed - 1e-6
    ]
    accepting = [name for name, check in found.items() if check.accuracy >= check.needed - 1e-6]
    sentences = [f"{name} did not check it" for name in missing]
    if refused:
        sentences.insert(0, f"by their own checks it is not good enough for {_list(refused)}")
    if accepting:
        sentences.insert(0, f"by their own checks it is good enough for {_list(accepting)}")
    return "; ".join(sentences)


def _list(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
