"""The same study without a network: hospitals are called in turn, in this process."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from client.hospital import Hospital
from common import rounds
from common.errors import ErosionError
from common.learning.models import build_model, flat_parameters
from common.messages import EvaluateReply, EvaluateRequest, Scaling, TrainRequest
from common.rounds import Absence, Answer, RoundRecord, RunState
from common.scaling import pool
from common.screening import screen
from common.study import Study


@dataclass(frozen=True, slots=True)
class Simulation:
    """What a simulated study ends with."""

    finals: Mapping[str, RunState]  # by arm
    records: Mapping[str, list[RoundRecord]]  # by arm
    evaluation: EvaluateReply


def simulate(
    study: Study,
    hospitals: Mapping[str, Hospital],
    on_round: Callable[[RoundRecord], None] = lambda _record: None,
) -> Simulation:
    """Run every arm of `study` on `hospitals`, which must include the user's.

    The steps and their order are those of a deployment, and so are the numbers.
    """
    scaling = _pooled_scaling(study, hospitals)
    model = build_model(study.model, study.task.input_shape, study.num_classes, study.seed)
    params = flat_parameters(model)
    finals: dict[str, RunState] = {}
    records: dict[str, list[RoundRecord]] = {}
    for arm, settings in study.arms.items():
        algorithm = settings.build(study.build_context)
        state = rounds.start(algorithm, params)
        records[arm] = []
        for _ in range(study.rounds):
            request = TrainRequest(study, arm, state.round + 1, state.params, scaling)
            answers: dict[str, Answer] = {}
            metrics = None
            wanted = rounds.wanted(study, algorithm, state)
            for name in wanted:
                if name not in hospitals:
                    answers[name] = Absence("was not connected")
                    continue
                try:
                    result = hospitals[name].train(request)
                except ErosionError as problem:
                    answers[name] = Absence(problem.public)
                    continue
                answers[name] = screen(
                    result,
                    agent=name,
                    arm=arm,
                    round_number=request.round,
                    dim=len(params),
                    max_norm=study.federation.max_update_norm,
                )
                metrics = result.header.metrics if name == study.user else metrics
            state, record = rounds.advance(
                state,
                algorithm,
                answers,
                arm=arm,
                user=study.user,
                quorum=rounds.needed_updates(study, len(wanted)),
            )
            record = replace(record, user_metrics=metrics)
            records[arm].append(record)
            on_round(record)
        finals[arm] = state
    parameters = {arm: state.params for arm, state in finals.items()}
    evaluation = hospitals[study.user].evaluate(EvaluateRequest(study, parameters, scaling))
    return Simulation(finals, records, evaluation)


def _pooled_scaling(study: Study, hospitals: Mapping[str, Hospital]) -> Scaling | None:
    if study.scaling != "federated":
        return None
    sums = [hospitals[name].describe(study).sums for name in sorted(hospitals)]
    return pool([s for s in sums if s is not None], study.task)
