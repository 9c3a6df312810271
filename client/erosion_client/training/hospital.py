"""A hospital's answers to describe, to the steps of a round, and to evaluate."""

import logging
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from erosion_client.dataset.load import KeptPatients
from erosion_client.dataset.local_dataset import LocalDataset
from erosion_client.dataset.task_checks import check_task, warm_up
from erosion_client.disclosure.control import DisclosureControl
from erosion_client.evaluation.explanation import linear_effects, permuted_losses, shown_arm
from erosion_client.evaluation.external import external_figures
from erosion_client.evaluation.final_figures import final_figures, measure, no_figures_yet
from erosion_client.evaluation.finish import finished
from erosion_client.evaluation.held_out import (
    BASE_RATE,
    Explained,
    FoldPredictions,
    run_folder_at,
    write_held_out,
)
from erosion_client.evaluation.references import fit_reference, folds_of_patients, loss_of_local_arm
from erosion_client.records.records import Records
from erosion_client.sealed.sealed_site import SealedIdentity
from erosion_client.sealed.sealed_steps import SealedSteps, secret_of
from erosion_client.site_file import Site
from erosion_client.training.kept_state import KeptState, Moment
from erosion_client.training.limits import (
    check_limits,
    check_parts,
    check_study,
    problem_with_device,
)
from erosion_client.training.privacy import PrivateRounds
from erosion_client.training.request import (
    Request,
    arm_of,
    checked_parameters,
    checked_payload,
    enclosed_of,
    faults_of,
    moments_of,
    sent_of,
    state_key_of,
)
from erosion_common.algorithms.base import TRAIN, ArmBase
from erosion_common.algorithms.personal_layers import personal_parameters, take_step
from erosion_common.errors import ErosionError, Refusal, SiteError
from erosion_common.learning.finished import Finished, Predictor, last_layer, predicted_by
from erosion_common.learning.local_work import LocalAnswer, LocalOutcome, LocalWork, Tensors
from erosion_common.learning.models import first_parameters
from erosion_common.protocol.compression import compress_with_feedback, unpacked
from erosion_common.protocol.messages import (
    MOST_LOSS,
    DescribeReply,
    EvaluateReply,
    EvaluateRequest,
    EvaluateResult,
    FinishFigures,
    Metrics,
    Scaling,
    StepReply,
    StepResult,
    Summary,
    SummaryReply,
    TrainReply,
    TrainRequest,
    TrainResult,
    layers_of,
)
from erosion_common.sealed import phases
from erosion_common.study.sections import BEST_LOCAL
from erosion_common.study.study import Study
from erosion_common.support.process import return_freed_memory
from erosion_common.support.software import software_version
from erosion_common.tasks.task import Floats

_ERROR = "compression error"  # in the kept state: what compression left over of the last update
MOST_KEPT_VALUES = 2**26  # of a model for which freed memory is kept
STUDIES_KEPT = 2  # prepared data in memory; an older study is prepared again when it is asked for

logger = logging.getLogger("erosion.site")


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A study's data, as they were when a run began."""

    dataset: LocalDataset
    revision: str | None  # of the data; None: changes are not detectable
    run: str | None


@dataclass(frozen=True, slots=True)
class _StepRun:
    """A step's outcome, and what the user measured with it."""

    outcome: LocalOutcome | LocalAnswer
    metrics: Metrics | None
    own_loss: float | None
    noise_multiplier: float | None


class Hospital:
    """One hospital. Between requests it keeps its data and model, and the state of methods.

    Every method raises Refusal for what the site's limits do not allow and for a request that does
    not fit the study, and DataError for data that do not meet the study's contract. It serves one
    request at a time.
    """

    def __init__(
        self,
        site: Site,
        secret: bytes = b"",
        noise_secret: bytes = b"",
        held_out: Path | None = None,
        records: Records | None = None,
    ) -> None:
        """Take the machine's resources that the site file grants. Raises SiteError.

        `secret`: the hospital's randomness is drawn from it; empty in a simulation. `noise_secret`:
        noise for privacy is drawn from it, if that is another one. `held_out`: the folder for held-
        out predictions as the user; None: by the site file, where that has one.
        """
        self.site, self._secret = site, secret
        self._records = records = records or Records.of(site)
        self._sealed = SealedSteps(site, records.sums)
        self._private = PrivateRounds(site, noise_secret or secret, records)
        folder = site.compute.state
        self._kept = KeptState(None if folder is None else folder / site.name)
        self._held_out = held_out or (None if folder is None else folder / site.name)
        self._cells = DisclosureControl(site, secret, records)
        self._patients = KeptPatients(site, self._kept)
        self._prepared: OrderedDict[str, _Prepared] = OrderedDict()  # by study digest, oldest first
        self._noted: set[tuple[str, str]] = set()  # study, and its notes about the data
        torch.set_num_threads(site.compute.threads)
        if reason := problem_with_device(site.compute.device):
            raise SiteError(
                f"compute.device = {site.compute.device!r}; this machine does not have it"
                f" ({reason})",
                remedy='Write "cpu".',
            )

    @property
    def name(self) -> str:
        """The hospital's enrolled name."""
        return self.site.name

    def identify(self, identity: SealedIdentity) -> None:
        """Use these keys for sealed rounds, instead of those in the site's files."""
        self._sealed = SealedSteps(self.site, self._records.sums, identity)

    def disclosed(self) -> list[str]:
        """Return the disclosed figures about its patients, in lines for people here."""
        return self._cells.disclosed()

    def describe(self, study: Study, run: str = "") -> DescribeReply:
        """Return this hospital's identity, its training patients, and its share of the scaling."""
        _check_whole(study)
        is_new = study.digest not in self._prepared
        prepared = self._prepare(study, run)
        check_parts(self.site, study, prepared.counts_in)
        self._private.check(study, prepared.disclosed_samples)
        if self._is_sealed(study):
            self._sealed.check()  # before others count on a hospital that can be in no sum
        has_finish = any(arm.finish != "none" for arm in study.arms.values())
        if has_finish and last_layer(prepared.model) is None:
            raise Refusal(
                "a finish needs a model that ends in nn.Linear.", where=f"Study {study.name!r}"
            )
        if is_new:
            with faults_of(study.model):  # it may be one that cannot be copied
                warm_up(prepared.model, study)
        return DescribeReply(
            hospital=self.name,
            num_samples=prepared.disclosed_samples,
            sums=prepared.sums if study.sends_sums(self.name) else None,
            model=prepared.model_shape,
            software=software_version(),
            summary=self._summary(study, prepared),
        )

    def _summary(self, study: Study, prepared: LocalDataset) -> Summary | None:
        """Return the description for comparing hospitals, where one may be given."""
        try:
            self._check_describes(study)
            return prepared.summary
        except Refusal as problem:
            self._tell(study, [f"its columns are not compared with other hospitals': {problem}"])
            return None

    def _check_describes(self, study: Study) -> None:
        if study.privacy is not None and self.name != study.user:
            raise Refusal(
                f"Study {study.name!r} promises differential privacy to the patients here, and"
                f" figures of columns have no noise: {self.name} gives none for it."
            )

    def summarise(self, study: Study) -> SummaryReply:
        """Describe this hospital's columns as they are now, before any training."""
        _check_whole(study)
        self._check_describes(study)
        summary = self._prepare(study, None).summary
        return SummaryReply(hospital=self.name, software=software_version(), **summary.model_dump())

    def keeps(self, request: Request) -> Tensors:
        """Return the run's kept state that an answer starts from, as tensors by arm and name."""
        if isinstance(request, TrainRequest) and request.step in phases.STEPS:
            return {}  # the sealed update is made
        return {
            f"{arm}/{name}": tensor
            for arm, moment in moments_of(request).items()
            for name, tensor in self._kept_before(request, arm, moment).items()
        }

    def kept_to(self, request: Request) -> dict[str, Moment | None]:
        """Return the last exchange of which state is kept in the run, by the request's arms."""
        if isinstance(request, TrainRequest) and request.step in phases.STEPS:
            return {}  # the sealed update is made
        return {
            arm: self._kept.last(state_key_of(request, arm), moment)
            for arm, moment in moments_of(request).items()
        }

    def train(self, request: TrainRequest) -> TrainResult:
        """Train from the request's parameters; the user also measures them on its test part."""
        result = self.answer(request)
        if not isinstance(result, TrainResult):
            raise Refusal(f"The step {request.step!r} of {request.arm} brings no update.")
        return result

    def evaluate(self, request: EvaluateRequest) -> EvaluateResult:
        """Return the final figures of every arm for the user's patients.

        They are of the test part, or of all patients where each was predicted with its fold. For a
        fold, the predictions are kept and there are no figures yet. Any other hospital returns
        figures of the delivered model alone, where the study and the site allow that.
        """
        study, places = request.study, None
        if self.name != study.user:
            return EvaluateResult(self._measured_elsewhere(request))
        if study.selection_fold is not None:
            raise Refusal("A part of a study has no final figures: the whole has.")
        prepared, fold = self._prepare(study, request.run), study.evaluation_fold
        self._begin(prepared, request)
        better: Sequence[str] = ()
        folds = FoldPredictions(self._kept, study, request.run)
        with _faults(prepared, request):
            personal, finishes, errors = self._predictors(prepared, request)
            if study.evaluation.folds is None or fold is not None:
                predictions = {
                    arm: self._predictions(prepared, predictor, request.scaling, arm)
                    for arm, predictor in personal.items()
                }
                references, better = self._references(prepared, request)
                predictions |= references
                explained = self._explained(prepared, personal, request.scaling)
            else:
                better = folds.better()
                chosen = [BEST_LOCAL] if better else []
                predictions = folds.gathered([*personal, *study.references, *chosen], prepared)
                places = folds.places(prepared)
                explained = folds.explained(prepared)
        if fold is not None:
            if better:
                predictions[BEST_LOCAL] = predictions[better[0]]
            folds.keep(fold, prepared, predictions, better[0] if better else None, explained)
            return EvaluateResult(no_figures_yet(self.name))
        measured = {name: each for name, each in predictions.items() if name != BASE_RATE}
        self._write_held_out(prepared, request.run, measured, places)
        differing, layers = {}, {}
        for arm, predictor in personal.items():
            own = predictor.parameters if isinstance(predictor, Finished) else predictor
            if not torch.equal(own.cpu(), request.parameters[arm]):
                differing[arm] = own.cpu()
            if isinstance(predictor, Finished):
                layers[layers_of(arm)] = predictor.layers.cpu()
        figures = final_figures(
            prepared,
            predictions,
            request.scaling,
            better,
            explained=explained,
            final_model=personal.get(shown_arm(study)),
            errors=errors.get(shown_arm(study)),
            finishes=finishes,
        )
        return EvaluateResult(figures, {**differing, **layers})

    def _measured_elsewhere(self, request: EvaluateRequest) -> EvaluateReply:
        study = request.study
        if study.validation is None or study.fold is not None:
            raise Refusal(
                f"{self.name} has no test part in study {study.name!r}, which has no [validation];"
                f" ask its user, {study.user}."
            )
        if not self.site.limits.validation:
            raise Refusal(
                f"{self.name} measures no other hospital's model; limits.validation = false."
            )
        prepared = self._prepare(study, request.run)
        self._begin(prepared, request)
        with faults_of(study.model, request):
            return external_figures(self.name, prepared, request)

    def _explained(
        self, prepared: LocalDataset, personal: Mapping[str, Predictor], scaling: Scaling | None
    ) -> Explained:
        arm = shown_arm(prepared.study)
        if (predictor := personal.get(arm)) is None:
            return Explained()
        losses = None
        with suppress(SiteError), faults_of(prepared.study.model):  # on mixtures of patients
            losses = permuted_losses(prepared, predictor, scaling, arm)
        return Explained(losses, linear_effects(prepared.study, predictor))

    def _references(
        self, prepared: LocalDataset, request: EvaluateRequest
    ) -> tuple[dict[str, Floats], list[str]]:
        """Return the references' predictions of the test part, and the better one by training."""
        study, task = request.study, request.study.task
        if not study.references:
            return {}, []
        training, test = prepared.rows_alone()
        folds = folds_of_patients(training, task, prepared.seed("references"))
        found = {
            name: fit_reference(name, task, training, test, folds) for name in study.references
        }
        of_patients = partial(task.predictions_of_patients, patients=prepared.test_patients)
        predictions: dict[str, Floats] = {
            name: of_patients(each.predictions) for name, each in found.items()
        }
        _, candidates = study.comparison or ("", ())
        if len(candidates) < 2:
            return predictions, []
        losses: dict[str, float] = {name: each.loss for name, each in found.items()}
        for arm in (name for name in candidates if name in study.arms):
            shape, weights = task.input_shape, self.site.compute.weights
            first = first_parameters(study.model, shape, task.num_outputs, study.seed, weights)
            work = self._work(prepared, request, arm, Moment(study.rounds + 1))
            work = replace(work, received=first.to(work.received.device), kept={})
            losses[arm] = loss_of_local_arm(study, arm, work, training, folds)
        return predictions, [min(candidates, key=lambda name: losses[name])]

    def _write_held_out(
        self,
        prepared: LocalDataset,
        run: str,
        predictions: Mapping[str, Floats],
        places: NDArray[np.int64] | None,
    ) -> None:
        """Keep the predictions here; a failure to keep them does not end the run."""
        if self._held_out is None:
            return
        folder = run_folder_at(self._held_out, run)
        try:
            write_held_out(folder, prepared, predictions, places)
        except SiteError as problem:
            logger.error("%s, study %s: %s", self.name, prepared.study.name, problem)
        else:
            logger.info(
                "%s, study %s: the held-out predictions are in %s, for this site alone",
                self.name,
                prepared.study.name,
                folder,
            )

    def answer(self, request: TrainRequest) -> TrainResult | StepResult:
        """Take the step that the request names: check, compute, bound what leaves, and commit."""
        started, study = perf_counter(), request.study
        prepared = self._prepare(study, request.run)
        if self._is_sealed(study) and request.step != TRAIN:
            return _step_result(self.name, request, self._sealed.answer(request), started)
        settings = self._arm(request)
        self._private.check_step(request)
        moment = Moment(request.round, request.exchange)
        step = self._run_step(prepared, request, settings, moment)
        outcome = step.outcome
        if not isinstance(outcome, LocalOutcome):
            self._keep(request, moment, outcome.keep, error=None)
            return _step_result(self.name, request, outcome, started)
        delta, left = compress_with_feedback(
            outcome.delta.cpu(),
            self._kept_before(request, request.arm, moment).get(_ERROR),
            study.federation.compression,
        )
        self._private.pay(request, delta, outcome.attachments)
        self._keep(request, moment, outcome.keep, error=left)
        keys = None
        if self._is_sealed(study):
            if any(tensor.numel() > 1 for tensor in outcome.attachments.values()):
                raise Refusal(
                    f"{settings.algorithm} sends more than single numbers with its update."
                )
            keys = self._sealed.hello(request, unpacked(delta))  # replaces the update
        header = TrainReply(
            hospital=self.name,
            arm=request.arm,
            round=request.round,
            step=request.step,
            num_samples=prepared.disclosed_samples,
            samples_seen=_samples_disclosed(outcome.samples_seen, prepared),
            seconds=perf_counter() - started,
            metrics=step.metrics,
            own_loss=step.own_loss,
            sealed=keys,
            noise_multiplier=step.noise_multiplier,
            steps=outcome.steps if study.reports_steps else None,
        )
        return TrainResult(
            header,
            delta if keys is None else torch.empty(0),
            {name: tensor.cpu() for name, tensor in outcome.attachments.items()},
        )

    def _run_step(
        self, prepared: LocalDataset, request: TrainRequest, settings: ArmBase, moment: Moment
    ) -> _StepRun:
        """Run the step; what it was computed from, at least a model, is freed on return."""
        study, layout = request.study, request.study.build_context.layout
        work = self._work(prepared, request, request.arm, moment)
        work = replace(work, step=request.step, values=request.values)
        self._begin(prepared, request)
        metrics = own_loss = None
        with _faults(prepared, request):
            outcome = take_step(settings, work, layout)
            if work.is_user and isinstance(outcome, LocalOutcome):
                personal = personal_parameters(settings, work, layout)
                if prepared.tells_of_test_part:
                    predicted = self._predictions(prepared, personal, request.scaling, request.arm)
                    outcomes = prepared.tested_outcomes, prepared.trained_outcomes
                    metrics = measure(study.task, predicted, *outcomes)
                if not (study.federation.sealed or settings.user_only):
                    own_loss = min(work.loss(personal), MOST_LOSS)
        noise = work.privacy.noise_multiplier or None if work.privacy else None
        if isinstance(outcome, LocalOutcome) and study.federation.compression != "none":
            others = (outcome.keep, outcome.attachments, work.enclosed, work.kept)
            if not _is_alone(outcome.delta, [t for each in others for t in each.values()]):
                outcome = replace(outcome, delta=outcome.delta.clone())
        return _StepRun(outcome, metrics, own_loss, noise)

    def _is_sealed(self, study: Study) -> bool:
        return study.federation.sealed and self.name != study.user

    def _arm(self, request: TrainRequest) -> ArmBase:
        """Return the requested arm; Refusal where it does not ask this hospital for the step."""
        settings = arm_of(request, request.arm)
        is_user = self.name == request.study.user
        if request.arm not in request.study.arms_asking(self.name, is_user=is_user):
            raise Refusal(f"{request.arm} does not ask {self.name} to train.")
        if request.step not in settings.site_steps():
            raise Refusal(
                f"The request asks for the step {request.step!r}; {settings.algorithm} has"
                f" {', '.join(settings.site_steps())}."
            )
        return settings

    def _keep(
        self, request: TrainRequest, moment: Moment, kept: Tensors, *, error: Tensor | None
    ) -> None:
        before = self._kept_before(request, request.arm, moment)
        error = before.get(_ERROR) if error is None else error
        left = {} if error is None else {_ERROR: error}
        place = state_key_of(request, request.arm)
        self._kept.keep(place, moment, before, {**kept, **left}, request.sent)

    def _kept_before(self, request: Request, arm: str, moment: Moment) -> Tensors:
        return self._kept.before(state_key_of(request, arm), moment, sent_of(request, arm))

    def _prepare(self, study: Study, run: str | None = "") -> LocalDataset:
        """Return the study's data as of the start of the run; without a run, as they are now."""
        if (known := self._prepared.get(study.digest)) is None:  # else below, with the patients
            check_study(self.site, study)
        # Before reading: what changes meanwhile is newer.
        revision = self.site.data.revision() if known is None or known.run != run else None
        is_as_it_was = known is not None and (
            known.run == run
            or (revision is not None and known.revision == revision and known.dataset.has_begun)
        )
        if known is None or not is_as_it_was:
            dataset = LocalDataset(self.site, study, self._cells, self._patients, run)
            measures = self.name == study.user or study.validation is not None
            check_task(study.task, dataset.training_targets, measures=measures)
            if dataset.dim > MOST_KEPT_VALUES:
                return_freed_memory()
            self._tell(study, dataset.notes)
            check_limits(self.site, study, dataset.training_counts)
        else:
            revision, dataset = known.revision, known.dataset
            if run is not None and known.run != run:
                self._patients.of(study, run)  # for its folds, too
        if known is None or run is not None:  # a run keeps its data
            self._prepared[study.digest] = _Prepared(dataset, revision, run)
            self._prepared.move_to_end(study.digest)
        while len(self._prepared) > STUDIES_KEPT:
            self._prepared.popitem(last=False)
        return dataset

    def _begin(self, prepared: LocalDataset, request: Request) -> None:
        """Note the patients before the first update or figure about them."""
        prepared.begin()
        self._patients.begin(request.study, request.run, prepared.patients)

    def _tell(self, study: Study, notes: Sequence[str]) -> None:
        """Log notes about the data, once for a study and all its folds and trials."""
        for note in notes:
            if (study.name, note) not in self._noted:
                self._noted.add((study.name, note))
                logger.warning("%s, study %s: %s", self.name, study.name, note)

    def _predictors(
        self, prepared: LocalDataset, request: EvaluateRequest
    ) -> tuple[dict[str, Predictor], dict[str, FinishFigures], dict[str, Tensor]]:
        """Return what the user predicts with after the last round, by arm.

        With it figures of finishes, and standard errors (dim,), of the arms that have them.
        """
        study, predictors = request.study, dict[str, Predictor]()
        finishes: dict[str, FinishFigures] = {}
        errors: dict[str, Tensor] = {}
        for arm in request.parameters:
            settings = arm_of(request, arm)
            work = self._work(prepared, request, arm, Moment(study.rounds + 1))
            # An arm may have had fewer rounds: training for its model goes on at their rate.
            following = request.rounds.get(arm, study.rounds) + 1
            work = replace(work, training=study.training.at(following, study.rounds))
            own = personal_parameters(settings, work, study.build_context.layout)
            predictors[arm] = own
            if (known := settings.standard_errors(work)) is not None:
                errors[arm] = known
            if settings.finish != "none":
                rows = work.inputs, prepared.training_targets, prepared.training_patients.numpy()
                predictors[arm], finishes[arm] = finished(study.task, prepared.model, own, *rows)
        return predictors, finishes, errors

    def _work(
        self, prepared: LocalDataset, request: Request, arm: str, moment: Moment
    ) -> LocalWork:
        study, device = request.study, self.site.compute.device
        is_other_step = isinstance(request, TrainRequest) and request.step != TRAIN
        length = None if is_other_step else prepared.dim
        received = torch.empty(0)
        if (sent := sent_of(request, arm)) is not None:
            received = checked_parameters(sent, prepared.dim)
        elif not is_other_step:
            raise Refusal("The request brings no parameters to train from.")
        training, _ = prepared.parts(request.scaling, arm)
        self._tell(study, prepared.notes)
        kept = self._kept_before(request, arm, moment)
        return LocalWork(
            agent=self.name,
            is_user=self.name == study.user,
            round=moment.round,
            seed=study.seed,
            model=prepared.model,
            received=received.to(device),
            inputs=training.inputs,
            targets=training.targets,
            task=study.task,
            training=study.training.at(moment.round, study.rounds),
            secret=secret_of(request, self._secret),
            patients=prepared.training_patients,
            disclosed_samples=prepared.disclosed_samples,
            smallest_cell=self.site.limits.min_cell,
            smallest_batch=self.site.limits.min_batch_size,
            privacy=self._private.step(request, arm, prepared.disclosed_samples),
            kept={name: tensor.to(device) for name, tensor in kept.items() if name != _ERROR},
            enclosed={
                name: checked_payload(name, tensor, length).to(device)
                for name, tensor in enclosed_of(request, arm).items()
            },
        )

    def _predictions(
        self, prepared: LocalDataset, predictor: Predictor, scaling: Scaling | None, arm: str
    ) -> Floats:
        """Return predictions for the patients of the test part, one each: (n, k)."""
        task, (_, test) = prepared.study.task, prepared.parts(scaling, arm)
        predicted = predicted_by(task, prepared.model, predictor, test.inputs)
        of_rows = task.usable(predicted.cpu().numpy())
        return task.predictions_of_patients(of_rows, prepared.test_patients)


@contextmanager
def _faults(prepared: LocalDataset, request: Request) -> Iterator[None]:
    try:
        with faults_of(prepared.study.model, request):
            yield
    except ErosionError:
        prepared.forget_parts()
        raise


def _is_alone(delta: Tensor, others: Sequence[Tensor]) -> bool:
    """Return whether `delta` shares its memory with nothing, and may be overwritten."""
    memory = delta.untyped_storage()
    is_shared = memory.data_ptr() in [other.untyped_storage().data_ptr() for other in others]
    return delta.is_contiguous() and memory.nbytes() == delta.nbytes and not is_shared


def _check_whole(study: Study) -> None:
    if study.fold is not None:
        raise Refusal("A fold or trial is not described: its study is, as a whole.")


def _samples_disclosed(samples_seen: int, prepared: LocalDataset) -> int:
    """Return samples in a round's mini-batches; whole passes count the rounded number."""
    training, num = prepared.study.training, prepared.num_training
    if prepared.study.privacy is not None:
        return prepared.disclosed_samples
    in_a_round = (training.steps or 0) * training.batch_size
    if in_a_round and num >= training.batch_size and samples_seen % in_a_round == 0:
        return samples_seen  # from the study, and not from the patients
    return max(1, round(samples_seen / num)) * prepared.disclosed_samples


def _step_result(
    name: str, request: TrainRequest, answer: LocalAnswer, started: float
) -> StepResult:
    header = StepReply(
        hospital=name,
        arm=request.arm,
        round=request.round,
        step=request.step,
        seconds=perf_counter() - started,
        values=dict(answer.values),
    )
    return StepResult(header, {key: tensor.cpu() for key, tensor in answer.tensors.items()})
