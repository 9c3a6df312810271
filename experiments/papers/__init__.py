"""The papers' experiments, repeated: one entry for each that `erosion experiment` knows."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from erosion_common.settings.base import validate
from experiments.cells import CellPlan, ExperimentError, Tick, Values
from experiments.experiment import Experiment
from experiments.papers import (
    fed_heart,
    fed_tcga,
    gems,
    gems_page,
    image_sites,
    inference,
    mnist,
    mnist_page,
    privacy,
    protections,
    quadratic,
    quadratic_page,
    references,
    robustness,
    robustness_page,
    rules,
    split_studies,
    titanic,
    tuned_rules,
    verdict,
    verdict_page,
)


def _quadratic_plans(given: Mapping[str, Any]) -> list[CellPlan]:
    constants = validate(quadratic.Constants, given, "--set", ExperimentError)
    return [*quadratic.plans(constants), *quadratic.tuned_plans(constants)]


def _run_quadratic(config: Values, data_dir: Path | None, tick: Tick) -> Values:
    run = quadratic.run if "rule" in config else quadratic.run_tuned
    return run(config, data_dir, tick)


EXPERIMENTS: Mapping[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        Experiment(
            "titanic",
            "Titanic",
            "Weight Erosion, FedAvg and local training for four hospitals by age (Grimberg et al."
            " 2020, figures 1 and 2), with the authors' faults and without. A minute.",
            titanic.plans,
            titanic.run,
            titanic.draw,
            settings=lambda config: (titanic.rule_of(config),),
            data_sets=lambda _config: ("titanic",),
        ),
        Experiment(
            "quadratic",
            "Noisy quadratic",
            "Weighted gradient averaging and bias correction against training alone on a noisy"
            " quadratic (Chayti et al. 2021, figures 2 to 6). Under a minute. --set takes a, zeta,"
            " sigma, collaborators, eta, beta, start, rounds, trials and seed.",
            lambda: _quadratic_plans({}),
            _run_quadratic,
            quadratic_page.draw,
            settings=lambda config: (quadratic.rule_of(config),) if "rule" in config else (),
            plans_with=_quadratic_plans,
        ),
        Experiment(
            "mean-estimation",
            "Mean estimation",
            "The best weight of another population's mean (Grimberg et al. 2021). Seconds.",
            quadratic.mean_plans,
            quadratic.run_means,
            quadratic_page.draw_means,
        ),
        Experiment(
            "mnist",
            "MNIST",
            "Weight Erosion, FedAvg and local training of a convolutional network, over seven"
            " distributions of MNIST's digits and 10 to 100 agents (Gengler et al. 2020, table II"
            " and figure 2), then with other settings and another partition. Ten hours of one core"
            " for the paper's cells, more again for the others; --cells '*-10-*' is a quarter.",
            mnist.plans,
            mnist.run,
            mnist_page.draw,
            settings=lambda config: (mnist.study_of(config),),
            data_sets=lambda _config: ("mnist",),
        ),
        Experiment(
            "gems",
            "GEMS",
            "Good-enough model spaces (Guha and Smith): a model that all nodes find good enough,"
            " on MNIST (five trials) and on features of HAM10000 and CIFAR-10. Four hours of one"
            " core.",
            gems.plans,
            gems.run_cell,
            gems_page.draw,
            settings=gems.options_of,
            data_sets=lambda config: (config["dataset"],),
        ),
        split_studies.ONE_ROUND_EXPERIMENT,
        rules.WHICH_RULE,
        rules.ODD_ONE_OUT,
        tuned_rules.EXPERIMENT,
        Experiment(
            "inference",
            "What a coordinator can infer",
            "Patients' records worked out of updates, against rounds, patients and local steps,"
            " with a public order of the mini-batches and as the program is. A quarter of an hour.",
            inference.plans,
            inference.run,
            inference.draw,
            settings=lambda config: (inference.study_of(config),),
        ),
        Experiment(
            "protections",
            "What the protections cost",
            "The default study with a site's protections on and off, over 40 splits: errors, and"
            " the seconds of an answer. Half an hour.",
            protections.plans,
            protections.run,
            protections.draw,
            settings=lambda config: (protections.study_of(config),),
        ),
        Experiment(
            "privacy",
            "What differential privacy costs",
            "The default study with epsilon 8, 3 and 1 for the other hospitals' patients, and"
            " without, over 40 splits. A quarter of an hour of one core.",
            privacy.plans,
            privacy.run,
            privacy.draw,
            settings=privacy.studies_of,
        ),
        Experiment(
            "fed-heart",
            "Fed-Heart-Disease",
            "Each of four heart hospitals as the user against FLamby's published accuracies, on its"
            " split and on a hundred others. Half an hour of one core.",
            fed_heart.plans,
            fed_heart.run,
            fed_heart.draw,
            settings=lambda config: (fed_heart.study_of(config),),
        ),
        Experiment(
            "fed-tcga",
            "Fed-TCGA-BRCA",
            "Survival with breast cancer, each of six regions as the user against FLamby's"
            " published C-index, on its split and on a hundred others. Four to ten hours of one"
            " core.",
            fed_tcga.plans,
            fed_tcga.run,
            fed_tcga.draw,
            settings=lambda config: (fed_tcga.study_of(config),),
        ),
        Experiment(
            "image-sites",
            "Image sites",
            "A convolutional network on real sites (HAM10000's four collections, each as the user)"
            " and on CIFAR-10 with skewed labels: the personal rules against local, pooled and"
            " averaged training. An hour of one core.",
            image_sites.plans,
            image_sites.run,
            image_sites.draw,
            settings=lambda config: (image_sites.study_of(config),),
        ),
        rules.SLOW_EROSION,
        split_studies.LOCAL_STEPS,
        Experiment(
            "verdict",
            "Verdict",
            "How often the verdict claims a difference that is not there, and one that is: by"
            " made-up predictions, and by whole studies on diabetes-130, HAM10000, MNIST and"
            " CIFAR-10. Half an hour of one core.",
            verdict.plans,
            verdict.run,
            verdict_page.draw,
            data_sets=lambda config: (config["data"],) if "data" in config else (),
        ),
        references.EXPERIMENT,
        rules.CONFIRMATION,
        Experiment(
            "robustness",
            "Robustness",
            "One harmful hospital: what eight attacks make of every method, on the shipped breast"
            " cancer and heart disease studies. An hour of one core.",
            robustness.plans,
            robustness.run,
            robustness_page.draw,
            settings=lambda config: (robustness.study_of(config),),
        ),
    )
}


def named(name: str) -> Experiment:
    """Return the experiment of that name; raises ExperimentError."""
    if name not in EXPERIMENTS:
        raise ExperimentError(
            f"There is no experiment {name!r}; there are {', '.join(EXPERIMENTS)}."
        )
    return EXPERIMENTS[name]
