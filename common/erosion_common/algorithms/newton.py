"""Exact regression over hospitals by Newton steps (Wu et al. 2012, GLORE)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import softplus

from erosion_common.aggregation.cohort import Cohort
from erosion_common.algorithms.base import (
    TRAIN,
    Algorithm,
    ArmBase,
    Ask,
    BuildContext,
    Exchanges,
    Layout,
    Payload,
    RoundStart,
    Step,
    relative_weights,
)
from erosion_common.algorithms.gems.rounds import perceptron_widths
from erosion_common.algorithms.weight_erosion import WeightErosion, WeightErosionState
from erosion_common.errors import Refusal
from erosion_common.learning.local_work import LocalOutcome, LocalWork, WorkSize
from erosion_common.tasks.classification import Classification
from erosion_common.tasks.count import MOST_OUTPUT, Count
from erosion_common.tasks.inputs import TabularTask
from erosion_common.tasks.regression import Regression
from erosion_common.tasks.task import Task

CURVATURE, FIT = "curvature", "fit"  # of an update
_ERRORS = "standard_errors"  # on its way to the user, and kept there
_PATIENTS_PER_PARAMETER = 3  # at least; as DataSHIELD's limit on saturated models
_MOST_COLUMNS = 1000
_MOST_ALONE = 0.8  # of a combination of columns, one patient's share; beyond, it is its record
_SINGULAR = 1e-10  # an eigenvalue of a Hessian, by the largest of one with diagonal 1
_SETTLED_BY = 6  # rounds, after which a step that does not shrink is one towards infinity
_REMEDY = "write penalty in the arm, such as penalty = 0.01, or leave columns out"


@dataclass(frozen=True, slots=True)
class NewtonState:
    """How far the run is."""

    round: int  # rounds aggregated so far
    erosion: WeightErosionState  # the hospitals' weights
    longest: float  # the largest change of a coefficient in the last round
    has_converged: bool
    errors: Tensor | None  # (dim,) see `ArmBase.standard_errors`; None: there are none yet


class Newton(ArmBase):
    """Logistic, linear or Poisson regression with the coefficients of all patients together.

    In each round every hospital sends the Newton step that its own patients ask for at the common
    parameters, and its Hessian, as a triangular root. The coordinator makes of them the Newton step
    of all patients, (sum H_i)^-1 sum H_i s_i. There is no learning rate, and of `[training]`
    nothing is used. Once a step is below `tolerance`, usually after five to seven rounds, the arm
    ends: coefficients, odds ratios and standard errors are those of a pooled analysis (of counts
    with Pearson's dispersion). `[selection]` leaves it all rounds. Use it where you would have
    pooled the tables for a regression, with a model of few columns. With `distance_penalty`
    hospitals lose weight by how far their own Newton step is from the user's, as in
    `weight_erosion`; then, and with `penalty`, there are no standard errors. A site takes part only
    if its `limits.min_local_steps` is 1, because what it sends is a gradient. It refuses with fewer
    than three patients for each coefficient, with several rows of a patient, where a column or a
    class has fewer than `limits.min_cell` patients outside its commonest value, and where one
    patient is nearly alone in a combination of columns (a leverage above 0.8).
    Source: Wu et al., Grid Binary LOgistic REgression (GLORE), 2012; the limit on coefficients:
    DataSHIELD's ds.glm.
    """

    measured_attachments: ClassVar[tuple[str, ...]] = (CURVATURE,)
    sends_gradients: ClassVar[bool] = True
    ends_by_itself: ClassVar[bool] = True
    discloses: ClassVar[str] = (
        "with each update the Hessian of the loss and how well the model fits: sums over all"
        " patients here, which give the exact number of patients, of those with each category, with"
        " each two of them, and with each and the outcome; a site takes part only with"
        " limits.min_local_steps = 1"
    )

    algorithm: Literal["newton"] = "newton"
    penalty: float = Field(
        default=0.0,
        ge=0,
        le=1e6,
        description="Strength of a ridge: half of it times the squared coefficients of columns as "
        "they are scaled, without the intercept, is added to the mean log loss of all patients, or "
        "to half of their mean squared error or deviance. 0: none.",
    )
    tolerance: float = Field(
        default=1e-6,
        ge=1e-7,
        le=0.1,
        description="The arm has converged where no coefficient, of columns as they are scaled, "
        "changes by more.",
    )
    distance_penalty: float = Field(
        default=0.0,
        ge=0,
        description="What a hospital's weight, 1 at first, loses in each round for the distance "
        "of its Newton step from the user's. 0: all weights are 1.",
    )

    def build(self, context: BuildContext) -> Algorithm[NewtonState]:
        """Return the Newton steps of all patients, and then a round that ends the arm."""
        rule = WeightErosion(
            distance_penalty=self.distance_penalty, size_penalty=0.0, per_step=False
        ).rule(context)
        widths = perceptron_widths(context.layout())  # () where the model is not known

        def update(state: NewtonState, cohort: Cohort) -> Step[NewtonState]:
            nothing = torch.zeros_like(cohort.own.delta)
            if state.has_converged:
                note = f"converged in {state.round} rounds"
                return Step(nothing, {}, state, outcome="stopped", note=note)
            eroded = None
            if self.distance_penalty and cohort.peers:
                eroded = rule.update(state.erosion, cohort)
                state = replace(state, erosion=eroded.state)
                if eroded.outcome != "done":
                    return Step(nothing, {}, state, outcome=eroded.outcome, note=eroded.note)
            shares = [1.0 if eroded is None else eroded.weights[u.agent] for u in cohort.updates]
            step = self._newton(state, cohort, shares, widths, context.rounds)
            return step if eroded is None else replace(step, weights=eroded.weights)

        def exchanges(state: NewtonState, begun: RoundStart) -> Exchanges[NewtonState]:
            if not state.has_converged:
                trained = yield Ask(TRAIN)
            else:
                last = Payload({} if state.errors is None else {_ERRORS: state.errors})
                trained = yield Ask(TRAIN, last, hospitals=(begun.user,))
            return update(state, trained.cohort)

        return Algorithm(
            lambda dim: NewtonState(0, rule.init(dim), 0.0, False, None),
            update,
            lambda state, agent: rule.asks(state.erosion, agent),
            exchanges=exchanges,
        )

    def _newton(
        self,
        state: NewtonState,
        cohort: Cohort,
        shares: Sequence[float],
        widths: Sequence[int],
        rounds: int,
    ) -> Step[NewtonState]:
        """Return the step of all patients, where those of hospital i count by its share."""
        dim, shown = len(cohort.own.delta), relative_weights(cohort, shares)
        hessian = torch.zeros(dim, dim, dtype=torch.float64)
        pull = torch.zeros(dim, dtype=torch.float64)
        for share, each in zip(shares, cohort.updates, strict=True):
            root = _unpacked(each.attachments[CURVATURE], dim)
            hessian += share * (root.T @ root)
            pull += share * (root.T @ (root @ each.delta.double()))
        inverse, rank = _inverse(hessian)
        outputs = widths[-1] if widths else 1
        delta, number = inverse @ pull, state.round + 1
        longest = float(_coefficients(delta, outputs).abs().max())
        is_plain = not self.distance_penalty
        problem = note = ""
        if widths and rank < widths[0] + 1:
            problem = f"of {widths[0] + 1} coefficients only {rank} can be told apart"
        elif is_plain and number >= _SETTLED_BY and longest > max(0.01, state.longest / 2):
            problem = (
                f"the steps do not become shorter ({longest:.2g} in round {number}), as where"
                " columns separate the classes"
            )
        if problem:
            note = f"{problem}; {_REMEDY}"
            return Step(torch.zeros(dim), shown, state, outcome="stopped", note=note)
        has_converged, errors = longest <= self.tolerance, None
        if has_converged and is_plain and not self.penalty:
            fits = [u.attachments[FIT].double() for u in cohort.updates]
            squares, patients = torch.stack(fits).sum(dim=0).tolist()
            spread = squares / max(1.0, patients - dim) if outputs == 1 else 1.0
            errors = (inverse.diagonal() * spread).sqrt().float()
            if outputs == 2:  # so that the difference of the two classes has its own
                errors = errors * _spread_out(torch.ones(widths[0] + 1), outputs)
        if number >= rounds:
            note = (
                "there was no round left to end with, as standard errors need it"
                if has_converged
                else f"the last step is {longest:.2g}, above tolerance = {self.tolerance:g}: more"
                " rounds would change the coefficients"
            )
        after = NewtonState(number, state.erosion, longest, has_converged, errors)
        return Step(delta.float(), shown, after, note=note)

    def train(self, work: LocalWork) -> LocalOutcome:
        """Return the Newton step of the patients here, and their Hessian. Raises Refusal."""
        if problem := _problem_with_patients(work):
            raise Refusal(f"{self.algorithm} is not for the patients here: {problem}.")
        task, outputs, targets = work.task, work.task.num_outputs, work.targets.double().cpu()
        columns = _columns(work)
        before = _coefficients(work.received.double().cpu(), outputs)
        scores = columns @ before
        if isinstance(task, Count):
            weights = scores.clamp(max=MOST_OUTPUT).exp() * task.centre
            residuals = weights - targets
            fit = (residuals.square() / weights).sum()  # Pearson's, for the dispersion
        elif isinstance(task, Regression):
            residuals = scores - (targets - task.centre) / task.spread
            weights, fit = torch.ones_like(scores), residuals.square().sum()
        else:
            chances = scores.sigmoid()
            residuals, weights = chances - targets, chances * (1 - chances)
            fit = (softplus(scores) - targets * scores).sum()
        is_linear = isinstance(task, Regression) and not isinstance(task, Count)
        # A coordinator may choose parameters at which all but a few patients are certain.
        if not is_linear and min(_carrying(weights), _carrying(residuals)) < work.smallest_cell:
            raise Refusal(
                "at these parameters the sums are in effect of fewer patients than"
                f" limits.min_cell = {work.smallest_cell}; {_REMEDY}.",
                where=self.algorithm,
            )
        ridge = torch.full_like(before, self.penalty * len(columns))
        ridge[-1] = 0.0
        gradient = columns.T @ residuals + ridge * before
        rows = torch.cat([weights.sqrt()[:, None] * columns, ridge.sqrt().diag()])
        root = torch.linalg.qr(rows, mode="r").R.float()
        inverse, _ = _inverse(root.double().T @ root.double())  # of what the coordinator gets
        step = _spread_out(-(inverse @ gradient) / outputs, outputs)
        return LocalOutcome(
            step.float(),
            work.num_disclosed,
            {
                CURVATURE: _packed(_spread_out(root, outputs)),
                FIT: torch.tensor([float(fit), float(len(columns))]),
            },
            {name: work.enclosed[name] for name in (_ERRORS,) if name in work.enclosed},
        )

    def standard_errors(self, work: LocalWork) -> Tensor | None:
        return work.kept.get(_ERRORS)

    def attachment_sizes(self, dim: int) -> dict[str, int]:
        return {CURVATURE: dim * (dim + 1) // 2, FIT: 2}

    def local_trainings(self, whole: WorkSize) -> tuple[WorkSize, ...]:
        """Return one step, which is what a gradient is to a site's limits."""
        one = whole.training.model_copy(update={"steps": 1, "epochs": None})
        remedy = "limits.min_local_steps = 1 at a site that lets gradients leave"
        return (replace(whole, training=one, remedy=remedy),)

    def builds_layers(self) -> bool:
        """Return True: the step is of the columns."""
        return True

    def problem_with_model(self, layout: Callable[[], Layout]) -> str | None:
        """Refuse other models than a regression of few columns, and parameters that stay."""
        widths = perceptron_widths(layout())
        if len(widths) != 2:
            return f"{self.algorithm} is a regression; write model.name = 'logistic'"
        if widths[0] >= _MOST_COLUMNS:
            return f"{widths[0]} columns; {self.algorithm} takes {_MOST_COLUMNS} at most"
        if self.own_parameters:
            return f"{self.algorithm} has no own_parameters: its coefficients are of all patients"
        return None

    def problem_with_task(self, task: Task) -> str | None:
        if isinstance(task, Regression):
            return None
        if not isinstance(task, Classification) or task.num_outputs != 2:
            return f"{self.algorithm} predicts one of two classes, a number or a count"
        if task.shifted_by:
            return f"{self.algorithm} counts all patients alike; leave class_weights out"
        return None


def _problem_with_patients(work: LocalWork) -> str:
    """Return why sums over the patients would say too much of a few, or nothing of many."""
    num, cell, columns = len(work.targets), work.smallest_cell, _columns(work)
    if work.patients is not None and len(torch.unique(work.patients)) < num:
        return "some have several rows, which are no independent observations"
    if num < _PATIENTS_PER_PARAMETER * columns.shape[1]:
        return f"there are fewer than {_PATIENTS_PER_PARAMETER} for each coefficient"
    sets = [*columns.T[:-1]]
    if isinstance(work.task, Classification | Count):
        sets.append(work.targets)
    for number, column in enumerate(sets):
        _, counts = torch.unique(column, return_counts=True)
        if 0 < num - int(counts.max()) < cell:
            return (
                f"{_name(work.task, number)} has fewer than limits.min_cell = {cell} outside its"
                " commonest value, and a Hessian counts them"
            )
    inverse, _ = _inverse(columns.T @ columns)
    if float(((columns @ inverse) * columns).sum(dim=1).max()) > _MOST_ALONE:  # leverage
        return (
            "one patient nearly alone decides a combination of columns, and its record could be"
            " read; use fewer knots or interactions, or winsorise"
        )
    return ""


def _columns(work: LocalWork) -> Tensor:
    """Return the patients' columns and a one for the intercept, (n, q) float64."""
    values = work.inputs.flatten(1).double().cpu()
    return torch.cat([values, torch.ones(len(values), 1, dtype=torch.float64)], dim=1)


def _name(task: Task, column: int) -> str:
    """Return what people call a model's input column; the one after the last is the outcome."""
    if column == prod(task.input_shape):
        return "the outcome"
    if not isinstance(task, TabularTask):
        return f"pixel {column + 1}"
    name, label = task.columns()[column]
    return f"{name} ({label})" if label else name


def _carrying(parts: Tensor) -> float:
    """Return of how many patients a sum of these parts (n,) is in effect (Kish's size)."""
    return float(parts.abs().sum() ** 2 / parts.square().sum().clamp(min=1e-300))


def _coefficients(parameters: Tensor, outputs: int) -> Tensor:
    """Return of (dim,) those of each column, the intercept last: (q,), second class less first."""
    if outputs == 1:
        return parameters
    weights, biases = parameters[:-2].reshape(2, -1), parameters[-2:]
    return torch.cat([weights[1] - weights[0], biases[1:] - biases[:1]])


def _spread_out(values: Tensor, outputs: int) -> Tensor:
    """Return values of coefficients (..., q) as of the model's parameters (..., dim)."""
    if outputs == 1:
        return values
    weights, bias = values[..., :-1], values[..., -1:]
    return torch.cat([-weights, weights, -bias, bias], dim=-1)


def _packed(root: Tensor) -> Tensor:
    """Return the upper triangle of (m, dim), m up to dim, row by row: (dim (dim + 1) / 2,)."""
    dim = root.shape[1]
    square = torch.cat([root, root.new_zeros(dim - len(root), dim)])
    return square[tuple(torch.triu_indices(dim, dim))]


def _unpacked(packed: Tensor, dim: int) -> Tensor:
    root = torch.zeros(dim, dim, dtype=torch.float64)
    root[tuple(torch.triu_indices(dim, dim))] = packed.double()
    return root


def _inverse(hessian: Tensor) -> tuple[Tensor, int]:
    """Return a generalised inverse (dim, dim) float64, and the rank."""
    diagonal = hessian.diagonal()
    scale = torch.where(diagonal > 0, diagonal, 1.0).rsqrt()
    values, vectors = torch.linalg.eigh(scale[:, None] * hessian * scale)
    large = values > _SINGULAR * values[-1]
    half = scale[:, None] * vectors[:, large] / values[large].sqrt()
    return half @ half.T, int(large.sum())
