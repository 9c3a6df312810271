"""How large the heads of a study's messages can be: what travels beside the arrays."""

from erosion.common.line.frames import LARGEST_HEAD_BYTES
from erosion.common.study.study import Study
from erosion.common.tasks.inputs import TabularTask

# A number takes at most 25 characters, and every name of a reply is in the study, too.
BASE_BYTES = 2**18  # an error's reason, the metrics, a method's values
COLUMN_BYTES = 2**9  # sums, means, deviations; of a description quantiles, too
ARM_BYTES = 2**13  # its final figures, with their intervals
HOSPITAL_BYTES = 2**12  # what is sealed for it
TIMES_STUDY = 4


def most_head_bytes(study: Study) -> int:
    """Of an honest reply; more from a site ends its stream."""
    return min(
        LARGEST_HEAD_BYTES,
        BASE_BYTES
        + COLUMN_BYTES * num_columns(study)
        + ARM_BYTES * len(study.arms)
        + HOSPITAL_BYTES * len(study.hospitals)
        + TIMES_STUDY * len(study.canonical_json()),
    )


def num_columns(study: Study) -> int:
    """Encoded ones; an image has none."""
    task = study.task
    return task.input_shape[0] + len(task.features) if isinstance(task, TabularTask) else 0
