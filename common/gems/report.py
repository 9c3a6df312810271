"""A round of GEMS in words: who has a model in common, and who would accept the result."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from erosion.common.aggregation.cohort import HospitalName
from erosion.common.gems.balls import problem_with_radius


@dataclass(frozen=True, slots=True)
class SentBall:
    """What a hospital sends of its ball, its model being the centre."""

    hospital: HospitalName
    radius: float
    accuracy: float  # of its own model, on patients held out
    needed: float  # epsilon
    patients: float  # that were held out
    strange: str | None = None  # what else of it no honest hospital sends

    @property
    def problem(self) -> str | None:
        """Why the ball cannot be believed, or None."""
        return problem_with_radius(self.radius) or self.strange

    @property
    def usable_radius(self) -> float:
        """The radius, or 0 where it cannot be believed."""
        return 0.0 if self.problem else self.radius

    @property
    def is_untold(self) -> bool:
        """Whether its model is good enough, and fewer than a cell of patients may be lost."""
        return self.radius == 0 and self.accuracy >= self.needed - 1e-6

    @property
    def tensor(self) -> Tensor:
        """As an attachment: (4,) float32."""
        return torch.tensor([self.radius, self.accuracy, self.needed, self.patients])


NUMBERS = 4  # of a ball's attachment


def sent_ball(hospital: HospitalName, attachment: Tensor, strange: str | None = None) -> SentBall:
    """The ball of an attachment (4,)."""
    radius, accuracy, needed, patients = attachment.tolist()
    return SentBall(hospital, radius, accuracy, needed, patients, strange)


class Met(Protocol):
    """What is said of a model that was found: a `Meeting`, or what `descend` found."""

    @property
    def gaps(self) -> Tensor:
        """How far it lies outside each ball (k,); 0: inside."""
        ...

    @property
    def in_all(self) -> bool:
        """Whether it lies in every ball that counts."""
        ...


def in_words(sent: Sequence[SentBall], meeting: Met) -> str:
    """Whether the model found lies in all balls, and by how much it misses the others."""
    believed = [number for number, ball in enumerate(sent) if ball.problem is None]
    sentences = [f"{ball.hospital} is left out: {ball.problem}" for ball in sent if ball.problem]
    sentences += [
        f"{ball.hospital} asks for an accuracy of {ball.needed:.2f}, and its own model reaches"
        f" {ball.accuracy:.2f} of {ball.patients:.0f} patients held out: its ball holds no other"
        for ball in sent
        if ball.problem is None and ball.accuracy < ball.needed - 1e-6
    ]
    if untold := [ball.hospital for ball in sent if ball.is_untold]:
        sentences.append(
            f"where fewer patients may be lost than a cell ({_list(untold)}), a ball holds no other"
            " model"
        )
    if meeting.in_all:
        return "; ".join([*sentences, f"the model lies in the balls of all {len(believed)}"])
    missed = [
        f"{sent[n].hospital}'s by {float(meeting.gaps[n]):.2g}"
        for n in believed
        if float(meeting.gaps[n]) > 0
    ]
    return "; ".join([*sentences, f"no model in all balls: the nearest misses {_list(missed)}"])


def apart_in_words(
    sent: Sequence[SentBall], meets: Callable[[int, int], bool], refusing: Collection[HospitalName]
) -> str:
    """With whom those who refuse the model have none in common.

    `meets` says whether two of the balls do. That they do not says little where both hospitals
    accept the model: a ball is only the part of the good models that was measured. It says nothing
    of a ball without a radius.
    """
    sentences = []
    for one, ball in enumerate(sent):
        if ball.hospital not in refusing or ball.problem or ball.is_untold:
            continue
        strangers = [
            other.hospital
            for number, other in enumerate(sent)
            if number != one and not (other.problem or other.is_untold) and not meets(one, number)
        ]
        both = "that is good enough for both, as far as their balls tell"
        if len(strangers) == 1:
            sentences.append(f"{ball.hospital} and {strangers[0]} have no model in common {both}")
        elif strangers:
            others = _list(strangers, "or")
            sentences.append(f"{ball.hospital} has no model in common with {others} {both}")
    return "; ".join(sentences)


class Check(Protocol):
    """What a hospital found of the model, on the patients that it held out."""

    accuracy: float
    needed: float


def refusing(found: Mapping[HospitalName, Check]) -> list[HospitalName]:
    """Those for whom the model is not good enough."""
    return [name for name, check in found.items() if check.accuracy < check.needed - 1e-6]


def checks_in_words(
    found: Mapping[HospitalName, Check], missing: Mapping[HospitalName, str]
) -> str:
    """What the hospitals' own checks say of the model."""
    refused = [
        f"{name} ({found[name].accuracy:.2f}, asked for {found[name].needed:.2f})"
        for name in refusing(found)
    ]
    accepting = [name for name in found if name not in refusing(found)]
    sentences = [f"{name} did not check it" for name in missing]
    if refused:
        whom = _list(refused)
        sentences.insert(0, f"by their own check the model is not good enough for {whom}")
    if accepting:
        sentences.insert(0, f"by their own check the model is good enough for {_list(accepting)}")
    return "; ".join(sentences)


def _list(names: Sequence[str], word: str = "and") -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {word} {names[-1]}"
