"""The same study without a network: hospitals are called in turn, in this process."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from erosion.client.training.hospital import Hospital
from erosion.common.errors import ErosionError, StudyError
from erosion.common.learning.models import build_model, flat_parameters
from erosion.common.protocol.messages import EvaluateReply, Scaling
from erosion.common.protocol.scaling import pool
from erosion.common.rounds import one_round
from erosion.common.rounds.model_selection import SelectedSettings, choose, chosen
from erosion.common.rounds.one_round import Absence, Answer, RoundRecord, RunState
from erosion.common.rounds.screening import screen
from erosion.common.study.study import Study


@dataclass(frozen=True, slots=True)
class Simulation:
    """What a simulated study ends with."""

    finals: Mapping[str, RunState]  # by arm
    records: Mapping[str, list[RoundRecord]]  # by arm
    evaluation: EvaluateReply
    personal: Mapping[str, Tensor]  # by arm, where the user predicts with other than the final's
    choices: Mapping[str, SelectedSettings]  # by arm


def simulate(
    study: Study,
    hospitals: Mapping[str, Hospital],
    on_round: Callable[[RoundRecord], None] = lambda _record: None,
) -> Simulation:
    """Run every arm of `study` on `hospitals`, which must include the user's.

    The steps and their order are those of a deployment, and so are the numbers. Raises StudyError
    for a study with every hospital as its user, which `erosion.experiments.every_user` takes apart.
    """
    if study.has_every_user:
        raise StudyError(
            f"Study {study.name} has every hospital as its user. Give one name, or use"
            " `python -m experiments.every_user`."
        )
    scaling = _pooled_scaling(study, hospitals)

    def run_trial(trial: Study, num_rounds: int) -> list[RoundRecord]:
        (arm,) = trial.arms
        return _run_arm(trial, arm, num_rounds, hospitals, scaling, lambda _record: None)[1]

    choices = {arm: choose(study, arm, run_trial) for arm in study.arms}
    study = chosen(study, choices)
    finals: dict[str, RunState] = {}
    records: dict[str, list[RoundRecord]] = {}
    for arm, choice in choices.items():
        finals[arm], records[arm] = _run_arm(
            study, arm, choice.rounds, hospitals, scaling, on_round
        )
    request = one_round.evaluate_request(study, finals, scaling=scaling)
    evaluated = hospitals[study.user].evaluate(request)
    return Simulation(finals, records, evaluated.header, evaluated.personal, choices)


def _run_arm(
    study: Study,
    arm: str,
    num_rounds: int,
    hospitals: Mapping[str, Hospital],
    scaling: Scaling | None,
    on_round: Callable[[RoundRecord], None],
) -> tuple[RunState, list[RoundRecord]]:
    model = build_model(study.model, study.task.input_shape, study.num_classes, study.seed)
    settings = study.arms[arm]
    algorithm = settings.build(study.build_context)
    state = one_round.start(algorithm, flat_parameters(model))
    dim = len(state.params)
    records = []
    for _ in range(num_rounds):
        to_peers, to_user = one_round.train_requests(study, arm, algorithm, state, scaling=scaling)
        answers: dict[str, Answer] = {}
        metrics = None
        wanted = one_round.wanted(study, algorithm, state)
        for name in wanted:
            if name not in hospitals:
                answers[name] = Absence("was not connected")
                continue
            asked = to_user if name == study.user else to_peers
            try:
                result = hospitals[name].train(asked)
            except ErosionError as problem:
                answers[name] = Absence(problem.public)
                continue
            answers[name] = screen(
                result,
                agent=name,
                arm=arm,
                round_number=asked.round,
                dim=dim,
                max_norm=study.federation.max_update_norm,
                attachment_sizes=settings.attachment_sizes(dim),
            )
            metrics = result.header.metrics if name == study.user else metrics
        state, record = one_round.advance(
            state,
            algorithm,
            answers,
            arm=arm,
            user=study.user,
            quorum=one_round.needed_updates(study, len(wanted)),
        )
        record = replace(record, user_metrics=metrics)
        records.append(record)
        on_round(record)
    return state, records


def _pooled_scaling(study: Study, hospitals: Mapping[str, Hospital]) -> Scaling | None:
    if study.scaling != "federated":
        return None
    sums = [hospitals[name].describe(study).sums for name in sorted(hospitals)]
    return pool([s for s in sums if s is not None], study.task)
