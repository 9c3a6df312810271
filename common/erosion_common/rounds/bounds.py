"""How large a study's messages can be: bounds for honest answers, and a check before it starts."""

import json
from math import prod

from erosion_common.algorithms.base import ExpectedReply
from erosion_common.errors import StudyError
from erosion_common.learning.models import num_built
from erosion_common.protocol.frames import LARGEST_HEAD_BYTES
from erosion_common.study.study import Study
from erosion_common.support.process import memory_bytes
from erosion_common.tasks.inputs import TabularTask

# A number takes at most 25 characters, and every name of a reply is in the study, too.
BASE_BYTES = 2**18  # an error's reason, the metrics, a method's values
COLUMN_BYTES = 2**9  # sums, means, deviations; of a description quantiles, too
ARM_BYTES = 2**13  # its final figures, with their intervals
HOSPITAL_BYTES = 2**12  # what is sealed for it
TIMES_STUDY = 4
MODELS_HELD = 4  # with updates on the disk: a model, what is sent, an update and their sum
SCALING_BYTES = 52  # of an encoded column in a request: its mean and its deviation
FIGURES_BYTES = 130  # in the final figures: two scalings, and what stands for a missing value
FLOAT_BYTES = 4
FRAMING_BYTES = 64  # of an array: where the next one begins, and the last block of compressed ones


def most_update_bytes(dim: int) -> int:
    """Returns the most for a vector (dim,) of float32, compressed or not."""
    return FLOAT_BYTES * dim + 2 * FRAMING_BYTES


def most_reply_bytes(expects: ExpectedReply, dim: int) -> int:
    """Returns the most for an answer with this, if the model has `dim` parameters."""
    most = most_update_bytes(dim) if expects.update else 0
    for terms in (*expects.tensors.values(), *expects.optional.values()):
        is_free = None in terms.shape
        values = terms.most_values if is_free else prod(n or 0 for n in terms.shape)
        most += values * terms.dtype.itemsize + FRAMING_BYTES
    return most


def most_head_bytes(study: Study) -> int:
    """Returns the most for an honest reply; more from a site ends its stream."""
    return min(
        LARGEST_HEAD_BYTES,
        BASE_BYTES
        + COLUMN_BYTES * num_columns(study)
        + ARM_BYTES * len(study.arms)
        + HOSPITAL_BYTES * len(study.everyone)
        + TIMES_STUDY * len(study.canonical_json()),
    )


def check_sizes(study: Study) -> None:
    """Raise StudyError where a message or the model is too large, before anybody waits for it."""
    if study.model.has_free_shapes:
        shape = tuple(study.task.input_shape)
        needed = MODELS_HELD * 4 * num_built(study.model, shape, study.task.num_outputs)
        if needed > (memory := memory_bytes()):
            raise StudyError(
                f"the coordinator needs {needed / 2**30:.1f} GiB of memory for a model of this"
                f" size, and this machine has {memory / 2**30:.1f} GiB",
                where=f"Study {study.name}",
                remedy="Take a smaller model, or a larger machine.",
            )
    if problem := problem_with_heads(study):
        what, remedy = problem
        raise StudyError(what, where=f"Study {study.name}", remedy=f"{remedy}.")


def problem_with_heads(study: Study) -> tuple[str, str] | None:
    """Returns why a receiver would refuse a message of the study, and the remedy; or None."""
    from erosion_common.protocol import wire  # and with it Flower, which a report does not need

    task = study.task
    width = task.input_shape[0] if isinstance(task, TabularTask) else 0
    scaled = SCALING_BYTES * width if study.scaling in ("federated", "user") else 0
    described = len(json.dumps(wire.header_text(wire.encode_describe(study))))
    of_columns = max(described + scaled, FIGURES_BYTES * width)
    others = BASE_BYTES + ARM_BYTES * len(study.arms) + HOSPITAL_BYTES * len(study.everyone)
    if of_columns + others <= LARGEST_HEAD_BYTES:
        return None
    fit = max(0, width * (LARGEST_HEAD_BYTES - others) // of_columns // 100 * 100)
    return (
        f"with {width:,} columns a message takes {(of_columns + others) / 2**20:.1f} MiB before its"
        f" arrays, and {LARGEST_HEAD_BYTES // 2**20} MiB are the most that anybody takes in",
        f"Leave columns out, or shorten their names; about {fit:,} fit",
    )


def num_columns(study: Study) -> int:
    """Returns the number of encoded columns; an image has none."""
    task = study.task
    return task.input_shape[0] + len(task.features) if isinstance(task, TabularTask) else 0
