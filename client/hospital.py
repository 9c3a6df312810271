"""A hospital's answers to describe, train and evaluate; whoever carries them in and out."""

import logging
from collections import OrderedDict
from importlib import metadata
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from client.limits import check_limits, check_study
from client.metrics import measure, measure_with_intervals
from client.prepared import Prepared
from client.site_file import Site
from client.verdict import compare
from common.errors import Refusal, SiteError
from common.learning.local_sgd import predict_probabilities, round_generator, train_locally
from common.learning.models import load_flat_parameters
from common.messages import (
    DescribeReply,
    EvaluateReply,
    EvaluateRequest,
    Metrics,
    Scaling,
    TrainReply,
    TrainRequest,
    TrainResult,
)
from common.study import Study

STUDIES_KEPT = 2  # prepared data in memory; an older study is prepared again when it comes back

logger = logging.getLogger("erosion.site")


class Hospital:
    """One hospital. It keeps its data and model between requests, and nothing else.

    Every method raises Refusal for what the site's limits do not allow and for a request that does
    not fit the study, and DataError for data that do not meet the study's contract. It serves one
    request at a time.
    """

    def __init__(self, site: Site) -> None:
        """Take the machine's resources that the site file grants; raises SiteError."""
        self.site = site
        self._prepared: OrderedDict[str, Prepared] = OrderedDict()  # by study digest, oldest first
        torch.set_num_threads(site.compute.threads)
        try:
            torch.zeros(1, device=site.compute.device)
        except (RuntimeError, AssertionError) as problem:
            reason = str(problem).splitlines()[0]
            raise SiteError(
                f"compute.device = {site.compute.device!r}; this machine does not have it"
                f' ({reason}). Write "cpu".'
            ) from None

    @property
    def name(self) -> str:
        """The hospital's enrolled name."""
        return self.site.name

    def describe(self, study: Study) -> DescribeReply:
        """Who this hospital is, how many patients it trains on, and its share of the scaling."""
        prepared = self._prepare(study)
        return DescribeReply(
            hospital=self.name,
            num_samples=prepared.num_training,
            sums=prepared.sums if study.scaling == "federated" else None,
            software=software_version(),
        )

    def train(self, request: TrainRequest) -> TrainResult:
        """Train from the request's parameters; the user also measures them on its test part."""
        started = perf_counter()
        prepared = self._prepare(request.study)
        start = self._checked(request.parameters, prepared)
        training, _ = prepared.parts(request.scaling)
        metrics = None
        if self.name == request.study.user:
            metrics = self._measure(prepared, start, request.scaling)
        result = train_locally(
            prepared.model,
            start,
            training.inputs,
            training.labels,
            request.study.training,
            round_generator(request.study.seed, self.name, request.round),
        )
        header = TrainReply(
            hospital=self.name,
            arm=request.arm,
            round=request.round,
            num_samples=prepared.num_training,
            samples_seen=result.samples_seen,
            seconds=perf_counter() - started,
            metrics=metrics,
        )
        return TrainResult(header, result.delta.cpu())

    def evaluate(self, request: EvaluateRequest) -> EvaluateReply:
        """The final figures of every arm on the user's test part; refused anywhere else."""
        study = request.study
        if self.name != study.user:
            raise Refusal(
                f"{self.name} has no test part in study {study.name!r}; ask its user, {study.user}."
            )
        prepared = self._prepare(study)
        labels = prepared.test_labels
        probabilities = {
            arm: self._probabilities(prepared, self._checked(vector, prepared), request.scaling)
            for arm, vector in request.parameters.items()
        }
        arms = {
            arm: measure_with_intervals(
                predicted,
                labels,
                prepared.majority,
                resamples=study.evaluation.bootstrap,
                seed=prepared.seed("bootstrap"),
            )
            for arm, predicted in probabilities.items()
        }
        comparison = None
        if study.comparison and all(arm in probabilities for arm in study.comparison):
            arm, reference = study.comparison
            comparison = compare(
                (arm, reference),
                (probabilities[arm], probabilities[reference]),
                labels,
                seed=prepared.seed("comparison"),
            )
        counts = np.bincount(labels, minlength=study.num_classes).tolist()
        names = [label.name for label in study.task.classes]
        return EvaluateReply(
            hospital=self.name,
            arms=arms,
            comparison=comparison,
            scaling=prepared.scaling(request.scaling),
            missing_means=prepared.missing_means,
            class_counts=dict(zip(names, counts, strict=True)),
        )

    def _prepare(self, study: Study) -> Prepared:
        check_study(self.site, study)
        digest = study.digest
        prepared = self._prepared.pop(digest, None)
        if prepared is None:
            prepared = Prepared(self.site, study)
            for note in prepared.notes:
                logger.warning("study %s: %s", study.name, note)
        self._prepared[digest] = prepared
        while len(self._prepared) > STUDIES_KEPT:
            self._prepared.popitem(last=False)
        check_limits(self.site, study, prepared.num_training)
        return prepared

    def _checked(self, parameters: Tensor, prepared: Prepared) -> Tensor:
        if parameters.shape != (prepared.dim,) or parameters.dtype != torch.float32:
            raise Refusal(
                f"The request brings parameters of shape {tuple(parameters.shape)} and type"
                f" {parameters.dtype}; the study's model has {prepared.dim} of torch.float32."
            )
        if not bool(torch.isfinite(parameters).all()):
            raise Refusal("The request brings parameters that are not finite; training diverged.")
        return parameters.to(self.site.compute.device)

    def _measure(self, prepared: Prepared, vector: Tensor, scaling: Scaling | None) -> Metrics:
        predicted = self._probabilities(prepared, vector, scaling)
        return measure(predicted, prepared.test_labels, prepared.majority)

    def _probabilities(
        self, prepared: Prepared, vector: Tensor, scaling: Scaling | None
    ) -> NDArray[np.float64]:
        """Class probabilities of the test part: (n, classes)."""
        _, test = prepared.parts(scaling)
        load_flat_parameters(prepared.model, vector)
        predicted = predict_probabilities(prepared.model, test.inputs).cpu().numpy()
        # Logits that overflow leave no probabilities: such a model knows nothing.
        return np.where(np.isnan(predicted), 1 / predicted.shape[1], predicted)


def software_version() -> str:
    """Version of this program as installed, "unknown" where it only lies in a folder."""
    try:
        return metadata.version("erosion")
    except metadata.PackageNotFoundError:
        return "unknown"
