"""The papers' experiments, repeated: one entry for each that `erosion experiment` knows."""

from collections.abc import Mapping

from experiments.cells import ExperimentError
from experiments.experiment import Experiment
from experiments.papers import (
    fed_heart,
    fed_tcga,
    gems_page,
    image_sites,
    inference,
    mnist,
    personal_finish,
    privacy,
    protections,
    quadratic_page,
    references,
    robustness_page,
    rules,
    split_studies,
    titanic,
    tuned_rules,
    verdict,
)

EXPERIMENTS: Mapping[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        titanic.EXPERIMENT,
        quadratic_page.QUADRATIC,
        quadratic_page.MEAN_ESTIMATION,
        mnist.EXPERIMENT,
        gems_page.EXPERIMENT,
        split_studies.ONE_ROUND_EXPERIMENT,
        rules.WHICH_RULE,
        rules.ODD_ONE_OUT,
        tuned_rules.EXPERIMENT,
        inference.EXPERIMENT,
        protections.EXPERIMENT,
        privacy.EXPERIMENT,
        fed_heart.EXPERIMENT,
        fed_tcga.EXPERIMENT,
        image_sites.EXPERIMENT,
        rules.SLOW_EROSION,
        split_studies.LOCAL_STEPS,
        verdict.EXPERIMENT,
        references.EXPERIMENT,
        personal_finish.EXPERIMENT,
        rules.CONFIRMATION,
        robustness_page.EXPERIMENT,
    )
}


def named(name: str) -> Experiment:
    """Return the experiment of that name; raises ExperimentError."""
    if name not in EXPERIMENTS:
        raise ExperimentError(
            f"There is no experiment {name!r}; there are {', '.join(EXPERIMENTS)}."
        )
    return EXPERIMENTS[name]
