"""The hospital as a Flower ClientApp, answering with code that the site installed."""

import logging
from collections.abc import Callable

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from erosion.client.consent.consent import Consent
from erosion.client.training.hospital import Hospital
from erosion.common.algorithms import REGISTRY, steps_of
from erosion.common.algorithms.base import TRAIN
from erosion.common.errors import ErosionError, Refusal
from erosion.common.protocol import wire
from erosion.common.protocol.error_codes import NoAnswer
from erosion.common.protocol.messages import TrainResult
from erosion.common.sealed import legs
from erosion.common.support.text import printable

logger = logging.getLogger("erosion.site")

LONGEST_LOGGED = 1000  # characters of why a request was refused

Respond = Callable[[RecordDict], RecordDict]


def make_app(hospital: Hospital, consent: Consent) -> ClientApp:
    """Serve `describe`, `train`, every method's other steps, and `evaluate` for one hospital.

    Consent notes an answer before it is computed, and what it leaves behind before it is sent.
    """
    app, studies = ClientApp(), wire.KnownStudies()

    def describe(record: RecordDict) -> RecordDict:
        study, run = wire.decode_describe(record, studies)
        consent.check_run(study, run)
        return wire.encode_describe_reply(hospital.describe(study, run or ""))

    def taking(step: str) -> Respond:
        def take(record: RecordDict) -> RecordDict:
            request = wire.decode_train(record, studies)
            if request.step != step:  # the log knows the step by the message's type
                raise Refusal(f"A message of {step!r} that asks for {printable(request.step)!r}.")
            consent.authorise(request, hospital.keeps(request), hospital.lacks(request))
            result = hospital.answer(request)
            consent.commit(request, is_kept=not hospital.lacks(request))
            if isinstance(result, TrainResult):
                return wire.encode_train_result(result)
            return wire.encode_step_result(result)

        return take

    def evaluate(record: RecordDict) -> RecordDict:
        request = wire.decode_evaluate(record, studies)
        consent.authorise(request, hospital.keeps(request), hospital.lacks(request))
        return wire.encode_evaluate_result(hospital.evaluate(request))

    def summarise(record: RecordDict) -> RecordDict:
        study, _ = wire.decode_describe(record, studies)
        consent.check(study)
        return wire.encode_summary_reply(hospital.summarise(study))

    app.query("summary")(_handler(hospital.name, summarise))
    app.query("describe")(_handler(hospital.name, describe))
    app.train()(_handler(hospital.name, taking(TRAIN)))
    of_methods = {step for arm in REGISTRY for step in steps_of(arm)} - {TRAIN}
    for step in of_methods | legs.STEPS:
        app.train(step)(_handler(hospital.name, taking(step)))
    app.evaluate()(_handler(hospital.name, evaluate))
    return app


def _handler(name: str, answer: Respond) -> Callable[[Message, Context], Message]:
    def handle(message: Message, context: Context) -> Message:
        del context  # the site keeps its own state; Flower's would travel through its store
        try:
            return Message(answer(message.content), reply_to=message)
        except wire.UnknownStudy as problem:
            return Message(wire.encode_unknown_study(problem), reply_to=message)
        except ErosionError as problem:
            kind = printable(message.metadata.message_type, at_most=60)
            logger.error("%s: %s", kind, printable(str(problem), at_most=LONGEST_LOGGED))
            refused = NoAnswer(problem.problem.code, name, problem.public)
        except Exception as problem:
            # Whatever goes wrong here must neither end the site nor carry a patient's value out.
            logger.exception("%s failed", message.metadata.message_type)
            kind = type(problem).__name__
            what = f"an unexpected {kind} at the site; its own log says more"
            refused = NoAnswer(kind, name, what)
        return Message(refused.encode(), reply_to=message)

    return handle
