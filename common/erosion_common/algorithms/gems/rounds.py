"""A round of GEMS (Guha and Smith, Model Aggregation via Good-Enough Model Spaces, 2019)."""

import math
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from erosion_common.aggregation.cohort import Cohort, HospitalName
from erosion_common.aggregation.vectors import norm
from erosion_common.algorithms.base import (
    TRAIN,
    Algorithm,
    Answers,
    ArmBase,
    Ask,
    BuildContext,
    Exchanges,
    ExpectedReply,
    Layout,
    Payload,
    RoundStart,
    SiteStep,
    Step,
    TensorSpec,
    relative_weights,
)
from erosion_common.algorithms.gems.balls import (
    Layer,
    directions,
    good_enough_ball,
    hidden_features,
    problem_with_radius,
    split_layers,
)
from erosion_common.algorithms.gems.meeting import Meeting, meet
from erosion_common.algorithms.gems.retraining import fine_tune, tuning
from erosion_common.errors import Refusal
from erosion_common.learning.local_sgd import LocalResult
from erosion_common.learning.local_work import LocalAnswer, LocalOutcome, LocalWork, WorkSize
from erosion_common.learning.training import Training
from erosion_common.settings.base import Settings
from erosion_common.support.text import printable
from erosion_common.tasks.task import Task


def accuracy_of(layer: Layer, features: Tensor, labels: Tensor) -> float:
    """Return share of patients that an output layer predicts rightly."""
    return float((layer(features).argmax(dim=1) == labels).double().mean())


@dataclass(frozen=True, slots=True)
class SentBall:
    """What a hospital sends of its ball, its model being the centre."""

    hospital: HospitalName
    radius: float
    accuracy: float  # of the hospital's model, on patients held out
    needed: float  # epsilon
    patients: float  # that were held out

    @property
    def problem(self) -> str | None:
        """Why the ball cannot be believed, or None."""
        return problem_with_radius(self.radius)

    @property
    def usable_radius(self) -> float:
        """The radius, or 0 where it cannot be believed."""
        return 0.0 if self.problem else self.radius

    @property
    def is_undisclosed(self) -> bool:
        """Whether its model is good enough, and fewer than a cell of patients may be lost."""
        return self.radius == 0 and self.accuracy >= self.needed - 1e-6

    @property
    def tensor(self) -> Tensor:
        """As an attachment: (4,) float32."""
        return torch.tensor([self.radius, self.accuracy, self.needed, self.patients])


NUMBERS = 4  # of a ball's attachment


def sent_ball(hospital: HospitalName, attachment: Tensor) -> SentBall:
    """Return the ball of an attachment (4,)."""
    radius, accuracy, needed, patients = attachment.tolist()
    return SentBall(hospital, radius, accuracy, needed, patients)


def in_words(sent: Sequence[SentBall], meeting: Meeting) -> str:
    """Return whether the model found lies in all balls, and by how much it misses the others."""
    believed = [number for number, ball in enumerate(sent) if ball.problem is None]
    sentences = [f"{ball.hospital} is left out: {ball.problem}" for ball in sent if ball.problem]
    sentences += [
        f"{ball.hospital} asks for an accuracy of {ball.needed:.2f}, and its own model reaches"
        f" {ball.accuracy:.2f} of {ball.patients:.0f} patients held out: its ball holds no other"
        for ball in sent
        if ball.problem is None and ball.accuracy < ball.needed - 1e-6
    ]
    if undisclosed := [ball.hospital for ball in sent if ball.is_undisclosed]:
        sentences.append(
            f"where fewer patients may be lost than a cell ({_list(undisclosed)}), a ball holds no"
            " other model"
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
    """Return which hospitals have no model in common with those who refuse this one.

    `meets` says whether two of the balls do. That they do not says little where both hospitals
    accept the model: a ball is only the part of the good models that was measured. It says nothing
    of a ball without a radius.
    """
    sentences = []
    for one, ball in enumerate(sent):
        if ball.hospital not in refusing or ball.problem or ball.is_undisclosed:
            continue
        strangers = [
            other.hospital
            for number, other in enumerate(sent)
            if number != one
            and not (other.problem or other.is_undisclosed)
            and not meets(one, number)
        ]
        both = "that is good enough for both, as far as their balls tell"
        if len(strangers) == 1:
            sentences.append(f"{ball.hospital} and {strangers[0]} have no model in common {both}")
        elif strangers:
            others = _list(strangers, "or")
            sentences.append(f"{ball.hospital} has no model in common with {others} {both}")
    return "; ".join(sentences)


def refusing(found: Mapping[HospitalName, "OwnCheck"]) -> list[HospitalName]:
    """Return the hospitals for which the model is not good enough."""
    return [name for name, check in found.items() if check.accuracy < check.needed - 1e-6]


def checks_in_words(
    found: Mapping[HospitalName, "OwnCheck"], missing: Mapping[HospitalName, str]
) -> str:
    """Return what the hospitals' own checks say of the model."""
    refused = [
        f"{name} ({found[name].accuracy:.2f}, asked for {found[name].needed:.2f})"
        for name in refusing(found)
    ]
    accepting = [name for name in found if name not in refusing(found)]
    sentences = [f"{name} did not check it" for name in missing]
    if refused:
        names = _list(refused)
        sentences.insert(0, f"by their own check the model is not good enough for {names}")
    if accepting:
        sentences.insert(0, f"by their own check the model is good enough for {_list(accepting)}")
    return "; ".join(sentences)


def _list(names: Sequence[str], word: str = "and") -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {word} {names[-1]}"


BALL = "ball"  # (4,) of an update: see `SentBall`
CHECK, REST, TUNE = "check", "rest", "tune"
_MODEL, _NEEDED, _OUTPUT = "model", "needed", "output"


@dataclass(frozen=True, slots=True)
class GemsState:
    """Nothing is remembered of a round but that it was."""

    round: int  # rounds aggregated so far


class OwnCheck(Settings):
    """What a hospital says of the model that was found."""

    accuracy: float = Field(ge=0, le=1)  # on its patients held out
    needed: float = Field(ge=0, le=1)  # what it asked for


class GemsBase(ArmBase):
    """A round: what comes before training, training with a ball, the meeting, the checks."""

    epsilon: float = Field(
        default=0.7,
        ge=0,
        le=1,
        description="Accuracy that is good enough, or a share of the own model's; see "
        "`epsilon_of`.",
    )
    epsilon_of: Literal["accuracy", "own_accuracy"] = Field(
        default="accuracy",
        description="What `epsilon` is: an accuracy, or a share of the accuracy of the "
        "hospital's own model.",
    )
    directions: int = Field(
        default=500,
        ge=1,
        le=100_000,
        description="Directions that are tried from the centre of a ball to measure its radius.",
    )
    gems_rounds: int = Field(default=1, ge=1, le=100, description="Rounds; then the arm ends.")
    local_rounds: int = Field(
        default=1,
        ge=1,
        le=10_000,
        description="Each hospital's optimum is trained for as long as this many rounds of the "
        "study's training.",
    )
    validation_share: float = Field(
        default=0.25,
        gt=0,
        lt=1,
        description="Share of each hospital's training patients held out to see what is good "
        "enough.",
    )

    @property
    def trainings(self) -> int:
        return self.local_rounds

    def local_trainings(self, whole: WorkSize) -> tuple[WorkSize, ...]:
        rest = whole.without_held_out(self.validation_share)
        return (replace(rest, training=self.longer(whole.training)),)

    def build(self, context: BuildContext) -> Algorithm[GemsState]:
        """Return an algorithm that ends after `gems_rounds` rounds."""

        def exchanges(state: GemsState, begun: RoundStart) -> Exchanges[GemsState]:
            return self._exchanges(state, begun, context)

        return Algorithm(lambda _dim: GemsState(0), self.update, exchanges=exchanges)

    def update(self, state: GemsState, cohort: Cohort) -> Step[GemsState]:
        """Return a model in all balls, or as near to that as was found."""
        sent = sent_balls(cohort)
        # A ball that cannot be believed does not count; the user's own model always does.
        counted = [1.0, *(0.0 if ball.problem else 1.0 for ball in sent[1:])]
        radii = torch.tensor([ball.usable_radius for ball in sent])
        gram = cohort.gram()
        meeting = meet(gram, radii, weights=torch.tensor(counted), from_afar=True)
        delta = cohort.weighted_sum(meeting.coefficients)
        shares = meeting.coefficients.clamp(min=0.0).tolist()
        after = GemsState(state.round + 1)
        return Step(delta, relative_weights(cohort, shares), after, note=in_words(sent, meeting))

    def site_steps(self) -> Mapping[str, SiteStep]:
        return {TRAIN: self.train, CHECK: self.check, REST: self.rest}

    def attachment_sizes(self, dim: int) -> Mapping[str, int]:
        return {BALL: NUMBERS}

    def builds_layers(self) -> bool:
        """Return True: models are merged layer by layer."""
        return True

    def problem_with_task(self, task: Task) -> str | None:
        """Refuse tasks without classes: good enough is a share of patients predicted rightly."""
        if task.predicts == "classes":
            return None
        return f"good enough is an accuracy, and the study's task is {task.outcome}"

    def problem_with_training(self, training: Training) -> str | None:
        length, most, unit = self.local_rounds * (training.epochs or 0), 1_000, "epochs"
        if training.steps:
            length, most, unit = self.local_rounds * training.steps, 100_000, "steps"
        if length <= most:
            return None
        return (
            f"local_rounds = {self.local_rounds} rounds of training are {length} {unit}; write a"
            f" number that makes {most} at most"
        )

    def check(self, work: LocalWork) -> LocalAnswer:
        """Return how good the model that was found is for the patients held out here."""
        model = work.enclosed[_MODEL]
        if work.own is not None:
            model = torch.where(work.own, work.received, model)
        _, held_out = self.parts(work)
        *hidden, output = split_layers(model, module_widths(work.model))
        features = held_out.of_patients(hidden_features(hidden, held_out.inputs.flatten(1)))
        checked = OwnCheck(
            accuracy=accuracy_of(output, features, held_out.outcomes),
            needed=float(work.kept[_NEEDED]),
        )
        return LocalAnswer(values=checked.model_dump(), keep=work.kept)

    def rest(self, work: LocalWork) -> LocalOutcome:
        """Return an update of nothing: with it the user's site measures the model once more."""
        sizes = self.attachment_sizes(len(work.received))
        return LocalOutcome(
            torch.zeros_like(work.received),
            len(work.targets),
            {name: torch.zeros(size) for name, size in sizes.items()},
            work.kept,
        )

    def parts(self, work: LocalWork) -> tuple[LocalWork, LocalWork]:
        """Return the patients to train on and those held out; the same where there are too few."""
        return work.hold_out(self.validation_share)

    def optimum(self, work: LocalWork, start: Tensor) -> LocalResult:
        """Return the local training of `local_rounds` rounds, from `start` (dim,)."""
        return replace(work, training=self.longer(work.training)).sgd(start)

    def longer(self, training: Training) -> Training:
        """Return the training of `local_rounds` rounds: its steps or passes."""
        steps, epochs = training.steps, training.epochs
        length = {
            "steps": steps and self.local_rounds * steps,
            "epochs": epochs and self.local_rounds * epochs,
        }
        return training.model_copy(update=length)

    def with_ball(
        self,
        work: LocalWork,
        delta: Tensor,
        samples_seen: int,
        layers: Sequence[Layer],
        generator: torch.Generator,
    ) -> LocalOutcome:
        """Return the update, with the ball around its output layer, the last of `layers`.

        A patient of several rows counts once: by the means of what the output layer is given of
        them, so that its margins are linear in the layer's parameters.
        """
        *hidden, output = layers
        _, held_out = self.parts(work)
        features = held_out.of_patients(hidden_features(hidden, held_out.inputs.flatten(1)))
        outcomes = held_out.outcomes
        epsilon = self.epsilon
        if self.epsilon_of == "own_accuracy":
            epsilon *= accuracy_of(output, features, outcomes)
        along = directions(self.directions, output.flat.numel(), generator)
        cell = held_out.smallest_cell
        ball = good_enough_ball(output, features, outcomes, epsilon, along, cell=cell)
        sent = SentBall(work.agent, ball.radius, ball.accuracy, ball.needed, len(outcomes))
        needed = torch.tensor(min(ball.needed, 1.0))
        return LocalOutcome(delta, samples_seen, {BALL: sent.tensor}, {_NEEDED: needed})

    def before_training(
        self, begun: RoundStart, widths: Sequence[int]
    ) -> Generator[Ask, Answers, Mapping[str, Tensor]]:
        """Yield the exchanges before training; return the tensors to enclose with it."""
        yield from ()
        return {}

    def last_training(self) -> str:
        """Return the step that brings the updates with their balls."""
        return TRAIN

    def after_meeting(
        self, begun: RoundStart, step: Step[GemsState], widths: Sequence[int]
    ) -> Generator[Ask, Answers, Step[GemsState]]:
        """Yield the exchanges between the meeting and the checks; return their step."""
        yield from ()
        return step

    def taking_part(self, begun: RoundStart) -> Sequence[HospitalName] | None:
        """Return who sends a model; None: everyone who answers."""
        return None

    def checked_by(self, begun: RoundStart) -> Sequence[HospitalName] | None:
        """Return who checks the model that was found; None: everyone who answered."""
        return self.taking_part(begun)

    def _exchanges(
        self, state: GemsState, begun: RoundStart, context: BuildContext
    ) -> Exchanges[GemsState]:
        if state.round >= self.gems_rounds:
            yield Ask(REST, hospitals=(begun.user,))
            nothing = torch.zeros_like(begun.parameters)
            rounds = "one round" if self.gems_rounds == 1 else f"{self.gems_rounds} rounds"
            note = f"done after {rounds}, as gems_rounds says"
            return Step(nothing, {}, state, outcome="stopped", note=note)
        widths = perceptron_widths(context.layout())
        enclosed = yield from self.before_training(begun, widths)
        trained = yield Ask(
            self.last_training(), Payload(enclosed), hospitals=self.taking_part(begun)
        )
        step = self.update(state, trained.cohort)
        if not self.attachment_sizes(len(begun.parameters)):
            return step  # without balls nobody holds patients out
        step = yield from self.after_meeting(begun, step, widths)
        checked = yield Ask(
            CHECK,
            Payload({_MODEL: begun.parameters + step.delta}),
            expects=ExpectedReply(values=OwnCheck),
            any_number=True,
            hospitals=self.checked_by(begun),
            sends_parameters=bool(self.own_parameters),
        )
        found = {name: answer.values for name, answer in checked.replies.items()}
        sent = sent_balls(trained.cohort)
        meets = which_meet(trained.cohort, sent)
        said = (  # what matters most comes first
            checks_in_words(found, checked.missing),
            apart_in_words(sent, meets, refusing(found)),
            step.note,
        )
        return replace(step, note="; ".join(part for part in said if part))


def sent_balls(cohort: Cohort) -> list[SentBall]:
    """Return every update's ball, own first."""
    return [sent_ball(update.agent, update.attachments[BALL]) for update in cohort.updates]


def which_meet(cohort: Cohort, sent: Sequence[SentBall]) -> Callable[[int, int], bool]:
    """Return whether two balls, by their place in the cohort, have a model in common."""
    gram = cohort.gram()
    norms = gram.diagonal()
    squares: Tensor = norms + norms[:, None] - 2 * gram
    apart = squares.clamp(min=0.0).sqrt()  # |d_i - d_j|

    def meets(one: int, other: int) -> bool:
        reach = sent[one].radius + sent[other].radius
        return float(apart[one, other]) <= reach * (1 + 1e-6)

    return meets


def module_widths(model: nn.Module) -> tuple[int, ...]:
    """Return inputs, hidden neurons and outputs of a perceptron."""
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    return (layers[0].in_features, *(layer.out_features for layer in layers))


def perceptron_widths(layout: Layout) -> tuple[int, ...]:
    """Return the same from the places of the parameters; empty where the model is no perceptron."""
    sizes = [place.stop - place.start for place in layout.values()]
    weights, biases = sizes[::2], sizes[1::2]
    if not sizes or len(weights) != len(biases):
        return ()
    widths = (weights[0] // biases[0], *biases)
    fits = all(w == i * o for w, (i, o) in zip(weights, pairwise(widths), strict=True))
    return widths if fits else ()


class PublicTuning(GemsBase):
    """GEMS with an output layer that a public hospital may train further."""

    public_hospital: str = Field(
        default="",
        description="Hospital with public data, to tune the model that was found. Left "
        "out: it is not tuned.",
    )
    tuning_epochs: int = Field(default=20, ge=1, le=1000, description="Passes over those patients.")

    def problem_with_names(self, hospitals: Sequence[HospitalName]) -> str | None:
        if self.public_hospital in ("", *hospitals):
            return None
        return (
            f"public_hospital = {self.public_hospital!r} is not among the hospitals"
            f" ({', '.join(hospitals)}); name one of them, or leave it out"
        )

    def site_steps(self) -> Mapping[str, SiteStep]:
        return {**super().site_steps(), TUNE: self.tune}

    def local_trainings(self, whole: WorkSize) -> tuple[WorkSize, ...]:
        """Return the tuning over all patients at the public hospital; as a peer it has no other."""
        known = () if self.only_tunes(whole) else super().local_trainings(whole)
        if whole.agent != self.public_hospital:
            return known
        tunes = tuning(self.tuning_epochs, whole.smallest_batch)
        return (*known, replace(whole, training=tunes, remedy="more tuning_epochs"))

    def only_tunes(self, whole: WorkSize) -> bool:
        """Return whether the hospital is the public one, and the model for another."""
        return whole.agent == self.public_hospital and not whole.is_user

    def taking_part(self, begun: RoundStart) -> Sequence[HospitalName] | None:
        """Return all but the public one, which takes part in the model that is for itself."""
        if self.public_hospital in ("", begun.user):
            return None
        return [name for name in begun.hospitals if name != self.public_hospital]

    def after_meeting(
        self, begun: RoundStart, step: Step[GemsState], widths: Sequence[int]
    ) -> Generator[Ask, Answers, Step[GemsState]]:
        """Yield the output layer after the public hospital has trained it."""
        name = self.public_hospital
        if not name:
            return step
        if name not in begun.hospitals or name == begun.user:
            why = "is the user" if name == begun.user else "is not there"
            return replace(step, note=f"{step.note}; not fine-tuned, for {name} {why}")
        model = begun.parameters + step.delta
        size = widths[-2] * widths[-1] + widths[-1]
        # Of scaled inputs, weights are about 1 after tuning, also where it starts near 0.
        tuned = yield Ask(
            TUNE,
            Payload({_MODEL: model}),
            expects=ExpectedReply(tensors={_OUTPUT: TensorSpec((size,), is_measured=True)}),
            hospitals=[name],
            sends_parameters=False,
            any_number=True,
            baseline=max(math.sqrt(size), norm(model[-size:])),
        )
        if name in tuned.missing:
            why = printable(tuned.missing[name])
            return replace(step, note=f"{step.note}; not fine-tuned, for {name} {why}")
        output = tuned.replies[name].tensors[_OUTPUT]
        delta = torch.cat([step.delta[:-size], output - begun.parameters[-size:]])
        return replace(step, delta=delta, note=f"{step.note}; fine-tuned by {name}")

    def tune(self, work: LocalWork) -> LocalAnswer:
        """Return the output layer (C d + C,) after `tuning_epochs` passes over all patients here.

        Raises Refusal at a hospital that the study does not name for it.
        """
        if work.agent != self.public_hospital:
            raise Refusal(f"{work.agent} is not the hospital with the public data.")
        *hidden, output = split_layers(work.enclosed[_MODEL], module_widths(work.model))
        features = hidden_features(hidden, work.inputs.flatten(1))
        tuned = fine_tune(
            output,
            features,
            work.targets,
            work.randomness(),
            loss=work.task.training_loss(work.targets),
            epochs=self.tuning_epochs,
            smallest_batch=work.smallest_batch,
        )
        found: dict[str, Tensor] = {_OUTPUT: tuned.flat}
        return LocalAnswer(found, keep=work.kept)


class Gems(PublicTuning):
    """One model that is good enough for every hospital, found in one round.

    Each hospital trains alone to its optimum and finds how far it may move from it before fewer
    than `epsilon` of its held-out patients are predicted rightly: a ball. The model taken lies in
    all balls, or as near to that as possible, and in the end each hospital checks it. The journal
    says which balls meet and who would accept the model. A ball is measured along random directions
    and is no guarantee; the check is. Its radius is a mean over as many patients as a site's
    smallest cell has, and 0 where fewer may be lost. Use it where hospitals can meet only once,
    with logistic regression; network_gems is for networks.
    Source: Guha, Smith, Model Aggregation via Good-Enough Model Spaces, 2019.
    """

    algorithm: Literal["gems"] = "gems"

    def problem_with_model(self, layout: Callable[[], Layout]) -> str | None:
        if len(perceptron_widths(layout())) == 2:
            return None
        return "gems is for model.name = 'logistic'; use network_gems for 'mlp'"

    def train(self, work: LocalWork) -> LocalOutcome:
        rest, _ = self.parts(work)
        result = self.optimum(rest, work.received)
        layers = split_layers(work.received + result.delta, module_widths(work.model))
        return self.with_ball(work, result.delta, result.samples_seen, layers, work.randomness())
