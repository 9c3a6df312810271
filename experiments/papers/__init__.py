"""The papers' experiments, repeated: one entry for each that `erosion experiment` knows."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from erosion.common.settings.base import validate
from erosion.experiments.cells import CellPlan, ExperimentError, Tick, Values
from erosion.experiments.experiment import Experiment
from erosion.experiments.papers import (
    confirmation,
    fed_heart,
    fed_tcga,
    image_sites,
    image_sites_page,
    inference,
    local_references,
    local_steps,
    mean_estimation,
    mnist,
    mnist_page,
    odd_one_out,
    one_round,
    privacy,
    protections,
    quadratic,
    quadratic_page,
    slow_erosion,
    titanic,
    titanic_page,
    tuned_quadratic,
    tuned_rules,
    which_rule,
)
from erosion.experiments.papers.gems.cell_runs import options_of as gems_options
from erosion.experiments.papers.gems.cell_runs import run_cell as run_gems
from erosion.experiments.papers.gems.grid import plans as gems_plans
from erosion.experiments.papers.gems.page import draw as draw_gems
from erosion.experiments.papers.robustness import grid as robustness
from erosion.experiments.papers.robustness.page import draw as draw_robustness
from erosion.experiments.papers.verdict import grid as verdict
from erosion.experiments.papers.verdict.page import draw as draw_verdict


def _quadratic_plans(given: Mapping[str, Any]) -> list[CellPlan]:
    constants = validate(quadratic.Constants, given, "--set", ExperimentError)
    return [*quadratic.plans(constants), *tuned_quadratic.plans(constants)]


def _run_quadratic(config: Values, data_dir: Path | None, tick: Tick) -> Values:
    run = quadratic.run if "rule" in config else tuned_quadratic.run
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
            titanic_page.draw,
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
            mean_estimation.plans,
            mean_estimation.run,
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
            gems_plans,
            run_gems,
            draw_gems,
            settings=gems_options,
            data_sets=lambda config: (config["dataset"],),
        ),
        Experiment(
            "one-round",
            "One round",
            "Personal GEMS in one round beside training alone, FedAvg, Weight Erosion and evidence"
            " erosion in many, on the shipped breast cancer and heart disease studies over 20"
            " splits. A few minutes.",
            one_round.plans,
            one_round.run,
            one_round.draw,
            settings=lambda config: (one_round.study_of(config),),
        ),
        Experiment(
            "which-rule",
            "Which rule wins",
            "Every rule with its defaults on the shipped breast cancer and heart disease studies,"
            " each heart hospital as the user, over 50 splits. Two hours of one core.",
            which_rule.plans,
            which_rule.run,
            which_rule.draw,
            settings=lambda config: (which_rule.study_of(config),),
        ),
        Experiment(
            "odd-one-out",
            "Odd one out",
            "The same rules for the hospital of the breast cancer study whose labels are the other"
            " way round than all others', over 50 splits. A quarter of an hour.",
            odd_one_out.plans,
            which_rule.run,
            odd_one_out.draw,
            settings=lambda config: (which_rule.study_of(config),),
        ),
        Experiment(
            "tuned-rules",
            "Which rule wins, tuned",
            "The same rules, each with its settings and number of rounds chosen inside the user's"
            " training part, on the same studies and the Titanic's four hospitals, over 50 splits."
            " Three hours of one core.",
            tuned_rules.plans,
            tuned_rules.run,
            tuned_rules.draw,
            settings=lambda config: (tuned_rules.study_of(config),),
        ),
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
            "Each of four heart hospitals as the user beside FLamby's published accuracies, on its"
            " split and on a hundred others. Half an hour of one core.",
            fed_heart.plans,
            fed_heart.run,
            fed_heart.draw,
            settings=lambda config: (fed_heart.study_of(config),),
        ),
        Experiment(
            "fed-tcga",
            "Fed-TCGA-BRCA",
            "Survival with breast cancer, each of six regions as the user beside FLamby's published"
            " C-index, on its split and on a hundred others. Four to ten hours of one core.",
            fed_tcga.plans,
            fed_tcga.run,
            fed_tcga.draw,
            settings=lambda config: (fed_tcga.study_of(config),),
        ),
        Experiment(
            "image-sites",
            "Image sites",
            "A convolutional network on real sites (HAM10000's four collections, each as the user)"
            " and on CIFAR-10 with skewed labels: the personal rules beside local, pooled and"
            " averaged training. An hour of one core.",
            image_sites.plans,
            image_sites.run,
            image_sites_page.draw,
            settings=lambda config: (image_sites.study_of(config),),
        ),
        Experiment(
            "slow-erosion",
            "Slow erosion",
            "Weight Erosion with several erosion shares on the shipped breast cancer and heart"
            " disease studies, on ten splits of their own. Minutes.",
            slow_erosion.plans,
            which_rule.run,
            slow_erosion.draw,
            settings=lambda config: (which_rule.study_of(config),),
        ),
        Experiment(
            "local-steps",
            "Local steps",
            "Bias correction, gradient averaging and Weight Erosion on real data with 1, 5 and"
            " 20 local steps a round (what Chayti et al. 2021 left out). A quarter of an hour of"
            " one core.",
            local_steps.plans,
            local_steps.run,
            local_steps.draw,
            settings=lambda config: (local_steps.study_of(config),),
        ),
        Experiment(
            "verdict",
            "Verdict",
            "How often the verdict claims a difference that is not there, and one that is: by"
            " made-up predictions, and by whole studies on diabetes-130, HAM10000, MNIST and"
            " CIFAR-10. Half an hour of one core.",
            verdict.plans,
            verdict.run,
            draw_verdict,
            data_sets=lambda config: (config["data"],) if "data" in config else (),
        ),
        Experiment(
            "references",
            "Local references",
            "A tuned ridge regression and boosted trees of the user's patients alone, on the splits"
            " of which-rule and confirmation, whose cells are read. Minutes.",
            local_references.plans,
            local_references.run,
            local_references.draw,
            settings=lambda config: (local_references.study_of(config),),
        ),
        Experiment(
            "confirmation",
            "Confirmation",
            "The same rules with the same constants on two studies that had not been looked at:"
            " readmission of diabetic patients by payer, and death of breast cancer within three"
            " years by region, over 50 splits. Half an hour of one core.",
            confirmation.plans,
            which_rule.run,
            confirmation.draw,
            settings=lambda config: (which_rule.study_of(config),),
        ),
        Experiment(
            "robustness",
            "Robustness",
            "One harmful hospital: what eight attacks make of every method, on the shipped breast"
            " cancer and heart disease studies. An hour of one core.",
            robustness.plans,
            robustness.run,
            draw_robustness,
            settings=lambda config: (robustness.study_of(config),),
        ),
    )
}


def named(name: str) -> Experiment:
    """The experiment of that name; raises ExperimentError."""
    if name not in EXPERIMENTS:
        raise ExperimentError(
            f"There is no experiment {name!r}; there are {', '.join(EXPERIMENTS)}."
        )
    return EXPERIMENTS[name]
