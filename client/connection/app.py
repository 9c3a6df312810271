"""The hospital as a Flower ClientApp: three requests, answered by code that the site installed."""

import logging
from collections.abc import Callable

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode

from erosion.client.training.hospital import Hospital
from erosion.common.errors import ErosionError
from erosion.common.protocol import wire

logger = logging.getLogger("erosion.site")

Respond = Callable[[RecordDict], RecordDict]


def make_app(hospital: Hospital) -> ClientApp:
    """Serve `describe`, `train` and `evaluate` for one hospital."""
    app = ClientApp()

    def describe(record: RecordDict) -> RecordDict:
        return wire.encode_describe_reply(hospital.describe(wire.decode_describe(record)))

    def train(record: RecordDict) -> RecordDict:
        return wire.encode_train_result(hospital.train(wire.decode_train(record)))

    def evaluate(record: RecordDict) -> RecordDict:
        return wire.encode_evaluate_result(hospital.evaluate(wire.decode_evaluate(record)))

    app.query("describe")(_handler(hospital.name, describe))
    app.train()(_handler(hospital.name, train))
    app.evaluate()(_handler(hospital.name, evaluate))
    return app


def _handler(name: str, answer: Respond) -> Callable[[Message, Context], Message]:
    def handle(message: Message, context: Context) -> Message:
        del context  # the site keeps its own state; Flower's would travel through its store
        try:
            return Message(answer(message.content), reply_to=message)
        except ErosionError as problem:
            logger.error("%s: %s", message.metadata.message_type, problem)
            reason = problem.public
        except Exception as problem:
            # Whatever goes wrong here must neither end the site nor carry a patient's value out.
            logger.exception("%s failed", message.metadata.message_type)
            reason = f"an unexpected {type(problem).__name__} at the site; its own log says more"
        error = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, f"{name}: {reason}")
        return Message(error, reply_to=message)

    return handle
