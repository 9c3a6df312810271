"""The common part of all GEMS: local optima, balls around them, each hospital's own check."""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from pydantic import Field
from torch import Tensor, nn

from erosion.common.aggregation.cohort import Cohort, HospitalName
from erosion.common.algorithms.base import (
    TRAIN,
    Algorithm,
    Answers,
    ArmBase,
    Ask,
    Brings,
    BuildContext,
    Exchanges,
    Layout,
    Payload,
    RoundStart,
    SiteStep,
    Step,
    relative_weights,
)
from erosion.common.gems.axes import problem_with_axes
from erosion.common.gems.intersection import meet_from_afar
from erosion.common.gems.layers import Layer, hidden_features, split_layers
from erosion.common.gems.measuring import accuracy_of, measured_ball
from erosion.common.gems.options import BallOptions
from erosion.common.gems.report import (
    NUMBERS,
    SentBall,
    apart_in_words,
    checks_in_words,
    in_words,
    refusing,
    sent_ball,
)
from erosion.common.learning.local_sgd import LocalResult
from erosion.common.learning.local_work import LocalAnswer, LocalOutcome, LocalWork
from erosion.common.learning.training import Training
from erosion.common.learning.work_size import WorkSize
from erosion.common.settings.base import Settings
from erosion.common.tasks.task import Task

BALL = "ball"  # (4,) of an update: see `SentBall`
AXES = "axes"  # (dim,) of an update whose ball is an ellipsoid
CHECK, REST = "check", "rest"
_MODEL, _NEEDED = "model", "needed"


@dataclass(frozen=True, slots=True)
class GemsState:
    """Nothing is remembered of a round but that it was."""

    round: int  # rounds aggregated so far


class OwnCheck(Settings):
    """What a hospital says of the model that was found."""

    accuracy: float = Field(ge=0, le=1)  # on its patients held out
    needed: float = Field(ge=0, le=1)  # what it asked for


class GemsBase(ArmBase, BallOptions):
    """A round: what comes before training, training with a ball, the meeting, the checks."""

    gems_rounds: int = Field(default=1, ge=1, le=100)
    local_rounds: int = Field(default=1, ge=1, le=10_000)
    validation_share: float = Field(default=0.25, gt=0, lt=1)

    @property
    def trainings(self) -> int:
        """The optimum takes `local_rounds` of them."""
        return self.local_rounds

    def local_trainings(self, whole: WorkSize) -> tuple[WorkSize, ...]:
        """The optimum, without those held out."""
        rest = whole.without_held_out(self.validation_share)
        return (replace(rest, training=self.longer(whole.training)),)

    def build(self, context: BuildContext) -> Algorithm[GemsState]:
        """`gems_rounds` rounds; then the run ends."""

        def exchanges(state: GemsState, begun: RoundStart) -> Exchanges[GemsState]:
            return self._exchanges(state, begun, context)

        return Algorithm(lambda _dim: GemsState(0), self.update, exchanges=exchanges)

    def update(self, state: GemsState, cohort: Cohort) -> Step[GemsState]:
        """A model in all balls, or as near to that as was found."""
        sent = sent_balls(cohort)
        # A ball that cannot be believed does not count; the user's own model always does.
        counted = [1.0, *(0.0 if ball.problem else 1.0 for ball in sent[1:])]
        radii = torch.tensor([ball.usable_radius for ball in sent])
        gram = cohort.gram()
        meeting = meet_from_afar(gram, radii, weights=torch.tensor(counted))
        delta = cohort.weighted_sum(meeting.coefficients)
        shares = meeting.coefficients.clamp(min=0.0).tolist()
        after = GemsState(state.round + 1)
        return Step(delta, relative_weights(cohort, shares), after, note=in_words(sent, meeting))

    def update_from(self, start: Tensor, state: GemsState, cohort: Cohort) -> Step[GemsState]:
        """The same, where the updates are known to start from the parameters `start` (dim,)."""
        del start
        return self.update(state, cohort)

    def site_steps(self) -> Mapping[str, SiteStep]:
        """Training, a check of what came of it, and what is left to do when all is done."""
        return {TRAIN: self.train, CHECK: self.check, REST: self.rest}

    def attachment_sizes(self, dim: int) -> Mapping[str, int]:
        """Every update brings the ball around its model."""
        del dim
        return {BALL: NUMBERS}

    def builds_layers(self) -> bool:
        """Models of hospitals are merged layer by layer."""
        return True

    def problem_with_task(self, task: Task) -> str | None:
        """Good enough is a share of patients predicted rightly, so there must be classes."""
        if task.outcome == "classification":
            return None
        return f"good enough is an accuracy, and the study's task is {task.outcome}"

    def problem_with_training(self, training: Training) -> str | None:
        """A local optimum takes a bounded number of steps, too."""
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
        """How good the model that was found is for the patients held out here."""
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
        """An update of nothing: with it the user's site measures the model once more."""
        sizes = self.attachment_sizes(len(work.received))
        return LocalOutcome(
            torch.zeros_like(work.received),
            len(work.targets),
            {name: torch.zeros(size) for name, size in sizes.items()},
            work.kept,
        )

    def which_meet(self, cohort: Cohort, sent: Sequence[SentBall]) -> Callable[[int, int], bool]:
        """Whether two balls, by their place in the cohort, have a model in common."""
        apart = distances_between(cohort.gram())

        def meets(one: int, other: int) -> bool:
            reach = sent[one].radius + sent[other].radius
            return float(apart[one, other]) <= reach * (1 + 1e-6)

        return meets

    def parts(self, work: LocalWork) -> tuple[LocalWork, LocalWork]:
        """The patients to train on, and those held out: the same where too few can be spared."""
        return work.hold_out(self.validation_share)

    def optimum(self, work: LocalWork, start: Tensor) -> LocalResult:
        """The local training of `local_rounds` rounds, from `start` (dim,)."""
        return replace(work, training=self.longer(work.training)).sgd(start)

    def longer(self, training: Training) -> Training:
        """As many steps or passes as `local_rounds` rounds have."""
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
        """The update, with the ball around its output layer, the last of `layers`.

        A patient of several rows counts once: by the means of what the output layer is given of
        them, so that its margins are linear in the layer's parameters.
        """
        *hidden, output = layers
        _, held_out = self.parts(work)
        features = held_out.of_patients(hidden_features(hidden, held_out.inputs.flatten(1)))
        outcomes = held_out.outcomes
        axes = self.axes(output, features, generator)
        ball = measured_ball(
            output, features, outcomes, self, generator, axes, held_out.smallest_cell
        )
        sent = SentBall(work.agent, ball.radius, ball.accuracy, ball.needed, len(outcomes))
        needed = torch.tensor(min(ball.needed, 1.0))
        attached = {BALL: sent.tensor} if axes is None else {BALL: sent.tensor, AXES: axes}
        return LocalOutcome(delta, samples_seen, attached, {_NEEDED: needed})

    def axes(self, output: Layer, features: Tensor, generator: torch.Generator) -> Tensor | None:
        """Those of an ellipsoid of output layers (C d + C,), or None for a ball."""
        del output, features, generator
        return None

    def before_training(
        self, begun: RoundStart, widths: Sequence[int]
    ) -> Generator[Ask, Answers, Mapping[str, Tensor]]:
        """The exchanges before training; returns what is enclosed with it."""
        del begun, widths
        yield from ()
        return {}

    def last_training(self) -> str:
        """The step that brings the updates with their balls."""
        return TRAIN

    def after_meeting(
        self, begun: RoundStart, step: Step[GemsState], widths: Sequence[int]
    ) -> Generator[Ask, Answers, Step[GemsState]]:
        """The exchanges between the meeting and the checks; returns what came of them."""
        del begun, widths
        yield from ()
        return step

    def taking_part(self, begun: RoundStart) -> Sequence[HospitalName] | None:
        """Who sends a model; None: everyone who answers."""
        del begun
        return None

    def checked_by(self, begun: RoundStart) -> Sequence[HospitalName] | None:
        """Who checks the model that was found; None: everyone who answered."""
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
        step = self.update_from(begun.parameters, state, trained.cohort)
        if not self.attachment_sizes(len(begun.parameters)):
            return step  # without balls nobody holds patients out
        step = yield from self.after_meeting(begun, step, widths)
        checked = yield Ask(
            CHECK,
            Payload({_MODEL: begun.parameters + step.delta}),
            brings=Brings(values=OwnCheck),
            any_number=True,
            hospitals=self.checked_by(begun),
            sends_parameters=bool(self.own_parameters),
        )
        found = {name: answer.values for name, answer in checked.replies.items()}
        sent = sent_balls(trained.cohort)
        meets = self.which_meet(trained.cohort, sent)
        said = (  # what matters most comes first
            checks_in_words(found, checked.missing),
            apart_in_words(sent, meets, refusing(found)),
            step.note,
        )
        return replace(step, note="; ".join(part for part in said if part))


def sent_balls(cohort: Cohort) -> list[SentBall]:
    """Every update's ball, own first."""
    found = []
    for update in cohort.updates:
        axes = update.attachments.get(AXES)
        strange = None if axes is None else problem_with_axes(axes)
        found.append(sent_ball(update.agent, update.attachments[BALL], strange))
    return found


def distances_between(gram: Tensor) -> Tensor:
    """|d_i - d_j| of all pairs, from the inner products (k, k)."""
    norms = gram.diagonal()
    squares: Tensor = norms + norms[:, None] - 2 * gram
    return squares.clamp(min=0.0).sqrt()


def module_widths(model: nn.Module) -> tuple[int, ...]:
    """Inputs, hidden neurons and outputs of a perceptron."""
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    return (layers[0].in_features, *(layer.out_features for layer in layers))


def perceptron_widths(layout: Layout) -> tuple[int, ...]:
    """The same from the places of the parameters; empty where the model is no perceptron."""
    sizes = [place.stop - place.start for place in layout.values()]
    weights, biases = sizes[::2], sizes[1::2]
    if not sizes or len(weights) != len(biases):
        return ()
    widths = (weights[0] // biases[0], *biases)
    fits = all(w == i * o for w, (i, o) in zip(weights, pairwise(widths), strict=True))
    return widths if fits else ()
