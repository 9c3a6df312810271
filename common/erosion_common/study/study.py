"""The study file: everything that the hospitals of one study agree on."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from math import inf
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator
from torch import Tensor

from erosion_common.algorithms import AnyArm, ArmSettings
from erosion_common.algorithms.base import ArmBase, BuildContext
from erosion_common.algorithms.personal_layers import problem_with_own, problem_with_statistics
from erosion_common.errors import ModelError, StudyError
from erosion_common.learning.finished import layer_size
from erosion_common.learning.models import (
    ModelSettings,
    check_size,
    model_of_shapes,
    parameter_layout,
)
from erosion_common.learning.private_step import problem_with_layers
from erosion_common.learning.training import Training
from erosion_common.settings.base import Settings, read_toml, validate
from erosion_common.settings.names import HospitalName, Name, ShownName
from erosion_common.settings.packages import faults_of_packages
from erosion_common.study import privacy, sealing
from erosion_common.study.privacy import Privacy, strength_of
from erosion_common.study.sections import (
    Evaluation,
    Federation,
    Fold,
    LocalReference,
    Selection,
    Validation,
)
from erosion_common.support.text import skeleton
from erosion_common.tasks import AnyTask
from erosion_common.tasks.inputs import ImageTask

EVERY_USER = "all"  # in place of the user's name: every hospital in turn
FINISHED = ("classification", "regression", "survival")  # what a finish can be fitted to
MOST_ARMS = 30  # the final parameters of all, and what goes with them, are one message


class Testbed(Settings):
    """Where `erosion testbed` takes its hospitals from. A deployment ignores this."""

    source: str = Field(
        description='Which made-up or downloaded hospitals: `"breast_cancer"`, `"cifar10"`, '
        '`"diabetes"`, `"diabetes_130"`, `"ham10000"`, `"heart_disease"`, `"mnist"`, '
        '`"tcga_brca"` or `"titanic"`.'
    )
    options: dict[str, Any] = Field(default_factory=dict, description="Options of that source.")


def _named_arms(value: Any) -> Any:
    """Take an arm's name as its default algorithm: `[arms.fedavg]`."""
    if isinstance(value, list | tuple) and all(isinstance(name, str) for name in value):
        if len(set(value)) < len(value):
            raise ValueError("name each arm once")
        value = {name: {} for name in value}
    if not isinstance(value, Mapping):
        return value
    return {
        name: {"algorithm": name, **arm} if isinstance(arm, Mapping) else arm
        for name, arm in value.items()
    }


class Study(Settings):
    """One study. See `erosion schema study` for the same as a JSON schema."""

    name: Name = Field(
        description="Name of the study: small letters, digits, - and _. The sites' limits and "
        "the run folder use it."
    )
    user: Name = Field(
        description='The hospital that the model is for, by its name in `hospitals`. `"all"`: '
        "every hospital in turn, one model each."
    )
    hospitals: tuple[HospitalName, ...] = Field(
        min_length=1,
        max_length=10_000,
        description="Names of all hospitals of the study. Each site's `name` must be one of them.",
    )
    names: dict[HospitalName, ShownName] = Field(
        default_factory=dict,
        description="What people call hospitals, in the report, `erosion watch` and `erosion "
        'status`: `{ch = "Basel"}`. Everywhere else a hospital has its name in `hospitals`.',
    )
    rounds: int = Field(
        ge=1,
        le=100_000,
        description="Rounds of every arm. In one round the model goes out, the hospitals train, "
        "and their updates come back.",
    )
    seed: int = Field(
        default=0,
        ge=0,
        lt=2**63,
        description="Start of all randomness that is not a site's own. The same seed and data "
        "give the same simulation; two installations differ, because each site trains in its "
        "own order ([evaluation](evaluation.md#what-is-repeatable)).",
    )
    task: AnyTask = Field(description="What is predicted, and from what.")
    scaling: Literal["none", "local", "user", "federated"] = Field(
        default="federated",
        description='How the numbers of a table are brought to one size. `"federated"`: by means '
        "and deviations over all hospitals' training patients, of which each hospital sends "
        'sums. `"user"`: by the user\'s own, so that no other hospital sends any. `"local"`: by '
        'each hospital\'s own. `"none"`: not at all; models then often learn nothing. A column '
        "that is the same for all but fewer patients than a cell has no deviation: it is not "
        "scaled, and is cut at 10 to either side of its mean. Any other is cut at 100 "
        "deviations, which no value of the experiments' data reaches; the hospital's log says "
        "how many values were cut. Left out for images.",
    )
    model: ModelSettings = Field(
        description="The model that is trained: the same at every hospital."
    )
    training: Training = Field(description="What every hospital does in a round.")
    arms: Annotated[
        dict[Name, ArmSettings],
        BeforeValidator(_named_arms, json_schema_input_type=dict[Name, AnyArm] | list[Name]),
        Field(min_length=1, max_length=MOST_ARMS),
    ] = Field(
        description="The methods to compare, by a name for each. A list of names is short for "
        "tables without settings."
    )
    evaluation: Evaluation = Field(
        default=Evaluation(),
        description="How the user's hospital measures the models, on patients that none was "
        "trained on.",
    )
    validation: Validation | None = Field(
        default=None,
        description="Given, an empty table too: at the end every other hospital measures the "
        "user's model on its own patients, if its site allows that, and the report shows how far "
        "it travels ([evaluation](evaluation.md#does-it-travel)). Left out: nobody does.",
    )
    selection: Selection | None = Field(
        default=None,
        description="Left out: the settings are as the file says. Given: each arm's settings and "
        "number of rounds are chosen inside the user's training part first.",
    )
    fold: Fold | None = Field(
        default=None,
        description="Not for people to write: which part is held out, in a trial of a selection "
        "or of a cross-fitted evaluation.",
    )
    federation: Federation = Field(
        default=Federation(), description="Who must be there, and how long anyone waits."
    )
    privacy: Privacy | None = Field(
        default=None,
        description="Differential privacy of the other hospitals' patients; see [differential "
        "privacy](privacy.md). Left out: there is none.",
    )
    testbed: Testbed | None = Field(
        default=None,
        description="Where `erosion testbed` takes its hospitals from. A deployment ignores this.",
    )

    @model_validator(mode="before")
    @classmethod
    def _images_are_not_scaled(cls, raw: Any) -> Any:
        if not isinstance(raw, Mapping) or "scaling" in raw:
            return raw
        task = raw.get("task")
        kind = task.get("kind") if isinstance(task, Mapping) else getattr(task, "kind", None)
        return {**raw, "scaling": "none"} if kind == "image" else raw

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if problem := next(filter(None, self._problems()), None):
            raise ValueError(problem)
        self._check_candidates()
        return self

    def _problems(self) -> Iterator[str | None]:
        """Yield what does not go together; each presumes that those before are None."""
        federation, arms = self.federation, self.arms
        if twice := sorted(name for name, times in Counter(self.everyone).items() if times > 1):
            yield f"hospitals: {', '.join(twice)} named twice; name each hospital once"
        if self.user not in (*self.hospitals, EVERY_USER):
            yield (
                f"user = {self.user!r} is not among the hospitals ({', '.join(self.hospitals)});"
                f" add it there, or write {EVERY_USER!r} for a model for each of them"
            )
        yield self._problem_with_names()
        if federation.quorum > len(self.hospitals):
            yield (
                f"federation.quorum = {federation.quorum}; it must be {len(self.hospitals)} or"
                " less, as many as the study has hospitals"
            )
        if isinstance(self.task, ImageTask) and self.scaling != "none":
            yield (
                f"scaling = {self.scaling!r}; an image task is scaled by task.mean and"
                " task.deviation, so leave scaling out"
            )
        yield self.evaluation.problem_with(self.task, arms, selects=self.selection is not None)
        if self.training.augmentation is not None and not isinstance(self.task, ImageTask):
            yield "training.augmentation is for images; leave it out"
        if self.training.schedule != "constant" and self.privacy is not None:
            yield (
                "training.schedule is of training.learning_rate, and a study with [privacy] has"
                " another; leave it out"
            )
        self.model.check_task(self.task.input_shape)
        check_size(self.model, tuple(self.task.input_shape), self.task.num_outputs)
        if self.model.frozen and self.model.has_free_shapes:
            try:
                self.build_context.layout()
            except ModelError as why:
                yield str(why)
        self._check_arms(arms)
        exact = [f"arms.{name}" for name, arm in arms.items() if arm.sends_gradients]
        if federation.compression != "none" and (federation.sealed or exact):
            of = "a sealed sum" if federation.sealed else exact[0]
            yield (
                f"federation.compression = {federation.compression!r}: {of} needs exact numbers;"
                " leave it out"
            )
        if federation.sealed and (problem := self._problem_with_sealing()):
            yield f"federation.sealed = true: {problem}"
        if self.privacy is not None and (problem := self._problem_with_privacy()):
            yield f"[privacy]: {problem}"
        if self.validation is not None and self.privacy is not None:
            yield (
                "[validation]: what hospitals measure has no noise, and [privacy] promises it to"
                " their patients; leave one of them out"
            )

    def _problem_with_names(self) -> str | None:
        owners = {skeleton(name): name for name in self.everyone}
        for hospital, called in self.names.items():
            if hospital not in self.everyone:
                return f"names.{hospital}: the study has no hospital of that name"
            if (owner := owners.setdefault(skeleton(called), hospital)) != hospital:
                return (
                    f"names.{hospital} = {called!r} looks like what {owner} is called; give it"
                    " another one"
                )
        return None

    def shown(self, hospital: str) -> str:
        """Return what people call a hospital."""
        return self.names.get(hospital, hospital)

    def _problem_with_privacy(self) -> str | None:
        return (
            privacy.problem_with_runs(self)
            or privacy.problem_with_inputs(self.task, self.scaling)
            or privacy.problem_with_arms(self.arms)
            or (self._problem_with_layers() if self.model.has_free_shapes else None)
        )

    def _problem_with_layers(self) -> str | None:
        shape, outputs = tuple(self.task.input_shape), self.task.num_outputs
        return problem_with_layers(model_of_shapes(self.model, shape, outputs))

    def _problem_with_sealing(self) -> str | None:
        return (
            sealing.problem_with_federation(self)
            or sealing.problem_with_arms(self.arms, self.training, self.task.predicts)
            or (self.problem_with_sealed_values() if self.model.has_free_shapes else None)
        )

    def problem_with_sealed_values(self, update: Tensor | None = None) -> str | None:
        """Return why sealed distances give updates away, or this one (dim,). Raises ModelError."""
        classes = self.task.num_outputs if self.task.predicts == "classes" else 1
        layout = self.build_context.layout()
        for name, arm in self.arms.items():
            if arm.user_only:
                continue
            if problem := sealing.problem_with_values(arm, layout, classes, update):
                return f"arms.{name}: {problem}"
        return None

    def _check_arms(self, arms: Mapping[str, AnyArm]) -> None:
        """Check what needs no parameters, and for models at hand what does."""
        for name, arm_settings in arms.items():
            with faults_of_packages():
                problem = (
                    arm_settings.problem_with(len(self.hospitals))
                    or arm_settings.problem_with_names(self.hospitals)
                    or self._problem_with_finish(arm_settings)
                    or arm_settings.problem_with_training(self.training)
                    or arm_settings.problem_with_task(self.task)
                    or (
                        self._problem_with_model(arm_settings)
                        if self.model.has_free_shapes
                        else None
                    )
                )
            if problem:
                raise ValueError(f"arms.{name}: {problem}")

    def _problem_with_finish(self, arm_settings: ArmBase) -> str | None:
        if arm_settings.finish != "none" and self.task.outcome not in FINISHED:
            return (
                f'finish = "{arm_settings.finish}" is for classes, a number or a time to an event,'
                f" not for outcome = {self.task.outcome!r}"
            )
        return arm_settings.problem_with_finish()

    def _problem_with_model(self, arm_settings: ArmBase) -> str | None:
        layout = self.build_context.layout
        # Shapes alone do not show it: what lies between the layers is unknown, or some are missing.
        is_like_no_other = (
            self.model.runs_installed_code
            or self.model.frozen
            or self.model.gathers_statistics
            or getattr(self.model, "ensemble_of", 1) > 1
        )
        if arm_settings.builds_layers() and is_like_no_other:
            return (
                f"{arm_settings.algorithm} builds the layers itself: set model.name to 'logistic'"
                " or 'mlp', and leave out frozen, ensemble_of, and normalisation"
            )
        if arm_settings.finish != "none" and not layer_size(layout()):
            return (
                f'finish = "{arm_settings.finish}" fits the last layer, and the last two parameters'
                f" of the model, {', '.join([*layout()][-2:])}, are not its weight and bias"
            )
        return (
            arm_settings.problem_with_model(layout)
            or problem_with_own(arm_settings.own_parameters, layout)
            or (
                problem_with_statistics(arm_settings, layout())
                if self.model.gathers_statistics
                else None
            )
        )

    def check_model(self) -> None:
        """Build a model that reading the study does not build, and hold every arm against it.

        A site calls this once its limits allow the model's code to run. Raises ModelError.
        """
        if self.model.has_free_shapes:
            return
        if self.privacy is not None and (problem := self._problem_with_layers()):
            raise ModelError(f"[privacy]: {problem}.", where=f"Study {self.name}")
        for name, arm_settings in self.arms.items():
            if problem := self._problem_with_model(arm_settings):
                raise ModelError(f"arms.{name}: {problem}.", where=f"Study {self.name}")
        if self.federation.sealed and (problem := self.problem_with_sealed_values()):
            raise ModelError(f"federation.sealed = true: {problem}.", where=f"Study {self.name}")
        self.build_context.layout()

    def _check_candidates(self) -> None:
        for arm, tried in (self.selection.candidates if self.selection else {}).items():
            if arm not in self.arms:
                raise ValueError(
                    f"selection.candidates names the arm {arm!r}; the arms are"
                    f" {', '.join(self.arms)}"
                )
            for number, settings in enumerate(tried, start=1):
                where = f"selection.candidates.{arm}, number {number}"
                raw = self.settings_of(arm, changed=settings)
                try:
                    candidate = validate(type(self.arms[arm]), raw, where, StudyError)
                except StudyError as problem:
                    raise ValueError("".join(str(problem).splitlines())) from None
                self._check_arms({arm: candidate})

    def settings_of(self, arm: str, *, changed: Mapping[str, Any]) -> dict[str, Any]:
        """Return an arm's settings with some of them changed, or a preset's in their place."""
        own = self.arms[arm]
        return {**own.model_dump(mode="json"), **own.expanded(changed)}

    @property
    def has_every_user(self) -> bool:
        """Whether each hospital gets its own model; see `for_user`."""
        return self.user == EVERY_USER

    @property
    def repeats_training(self) -> bool:
        """Whether hospitals train for trials or folds, too."""
        trials = (self.selection, self.fold, self.evaluation.folds)
        return any(part is not None for part in trials)

    def for_user(self, user: str) -> "Study":
        """Return the same study with one hospital as its user."""
        return Study.model_validate({**self.model_dump(), "user": user})

    @property
    def whole(self) -> "Study":
        """The study that a fold is of."""
        return self if self.fold is None else self._without_fold

    @cached_property
    def _without_fold(self) -> "Study":
        return self.model_copy(update={"fold": None})

    @property
    def selection_fold(self) -> Fold | None:
        """What this trial of a selection leaves out of the training part; None: it is no trial."""
        return None if self.fold is None or self.fold.cut is not None else self.fold

    @property
    def evaluation_fold(self) -> Fold | None:
        """What this run of a cross-fitted evaluation leaves out of all patients; None: nothing."""
        return None if self.fold is None or self.fold.cut is None else self.fold

    @property
    def only_measuring(self) -> tuple[str, ...]:
        """The hospitals that train nothing."""
        return () if self.validation is None else self.validation.hospitals

    @property
    def everyone(self) -> tuple[str, ...]:
        """All hospitals that the study is sent to."""
        return (*self.hospitals, *self.only_measuring)

    def arms_asking(self, hospital: str, *, is_user: bool) -> list[str]:
        """Return the arms in which a hospital trains; none of one that only measures."""
        trains = hospital in self.hospitals
        return [n for n, arm in self.arms.items() if is_user or (trains and not arm.user_only)]

    @property
    def user_first(self) -> tuple[str, ...]:
        """The hospitals with the user's own in front; as they are written where all are users."""
        peers = tuple(name for name in self.hospitals if name != self.user)
        return peers if self.has_every_user else (self.user, *peers)

    @property
    def references(self) -> tuple[LocalReference, ...]:
        """The models that the user's site fits to its own patients alone, to be compared with."""
        return self.evaluation.references_for(self.task)

    @property
    def comparison(self) -> tuple[str, tuple[str, ...]] | None:
        """The verdict's arm, and what it may be compared with: the best in the training part."""
        if self.evaluation.compare is not None:
            arm, reference = self.evaluation.compare
            return arm, (reference,)
        names = list(self.arms)
        local = next((n for n in names if self.arms[n].algorithm == "local"), None)
        candidates: tuple[str, ...] = (*([local] if local else []), *self.references)
        if not candidates:
            candidates = (names[-1],)
        first = next((n for n in names if n not in candidates), None)
        return (first, candidates) if first is not None else None

    @cached_property
    def build_context(self) -> BuildContext:
        """What the study's algorithms are built with."""
        layout = partial(
            parameter_layout, self.model, tuple(self.task.input_shape), self.task.num_outputs
        )
        hospitals = len(self.hospitals)
        if (promised := self.privacy) is None:
            return BuildContext(self.rounds, hospitals, layout, self.training.steps_with)
        noise = partial(promised.noise_deviation, self.num_releases)
        return BuildContext(self.rounds, hospitals, layout, noise_deviation=noise)

    def longest_noise(self, patients: float, dim: int) -> float:
        """Return the privacy noise's bound in the norm of a peer's update (dim,); 0 without any."""
        if self.privacy is None:
            return 0.0
        return self.privacy.longest_noise(self.num_releases, patients, dim)

    @property
    def reports_steps(self) -> bool:
        """Whether hospitals take different numbers of steps, which they report if an arm asks."""
        is_summed = self.federation.sealed or self.privacy is not None
        return self.training.epochs is not None and not is_summed

    @property
    def num_releases(self) -> int:
        """Updates that leave a peer in a run: of each round of each arm that asks it."""
        return self.rounds * sum(not arm.user_only for arm in self.arms.values())

    @property
    def privacy_cost(self) -> float:
        """The strength of all updates that a peer gives in a run; infinite without privacy."""
        if self.privacy is None:
            return inf
        releases = self.num_releases
        return releases * strength_of(self.privacy.noise_multiplier(releases))

    def sends_sums(self, hospital: str) -> bool:
        """Return whether the hospital sends sums that columns are scaled by."""
        if self.scaling == "federated":
            return hospital in self.hospitals
        return self.scaling == "user" and hospital == self.user

    def canonical_json(self) -> str:
        """Return the study as one line of JSON: what travels, and what the digest is taken of."""
        return self.identity[0]

    @property
    def digest(self) -> str:
        """SHA-256 of the study, hexadecimal."""
        return self.identity[1]

    @cached_property
    def identity(self) -> tuple[str, str]:
        """`canonical_json` and `digest`, made once: a study does not change."""
        text = json.dumps(self.model_dump(mode="json", exclude={"testbed"}))
        return text, hashlib.sha256(text.encode()).hexdigest()

    def __copy__(self) -> Self:
        """Drop the identity: what `model_copy` changes is another study."""
        copied = super().__copy__()
        for made_once in ("identity", "_without_fold", "build_context"):
            copied.__dict__.pop(made_once, None)
        return copied


def load_study(path: Path, content: bytes | None = None) -> Study:
    """Read a study file, or its `content`. Raises StudyError with every problem and its remedy."""
    raw = read_toml(path, "study file", StudyError, content)
    return validate(Study, raw, f"Study file {path}", StudyError)


def study_from_json(text: str) -> Study:
    """Return the study that another machine sent; raises StudyError."""
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise StudyError(f"The study that was received is not JSON: {problem}.") from None
    if not isinstance(raw, dict):
        raise StudyError("The study that was received is not a JSON object.")
    return study_from_values(raw)


def study_from_values(raw: Mapping[str, Any]) -> Study:
    """Return the same, parsed already; raises StudyError."""
    return validate(Study, raw, "The study that was received", StudyError)
