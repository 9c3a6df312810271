"""The studies that come with the program, as the papers' experiments run them."""

from typing import Any

from erosion.common.study.study import Study, load_study
from erosion.experiments.testbed import study_path


def shipped_study(name: str, **changed: Any) -> Study:
    """One of them with other values of some keys, measured once and with few resamples."""
    study = load_study(study_path(name))
    evaluation = {"test_share": study.evaluation.test_share, "bootstrap": 100}
    return Study.model_validate(
        study.model_dump(mode="json") | {"evaluation": evaluation} | changed
    )
