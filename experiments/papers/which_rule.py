"""Compares every rule on the shipped studies, over many splits of the patients.

Every arm starts from the same model and takes as many local steps. The seed decides training, the
user's test patients, and (breast cancer) which patient is at which hospital. Splits of one study
share patients, so an interval is about splits of these patients, not about other hospitals.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from erosion.common.study.study import Study, load_study
from erosion.experiments.cells import Cell, CellPlan, Tick, Values
from erosion.experiments.experiment import Page
from erosion.experiments.papers.rule_page import Arms, RulePage, Setting
from erosion.experiments.papers.shipped_study import shipped_study
from erosion.experiments.splits import one_split
from erosion.experiments.testbed import study_path

SEEDS = 50
SLOW = "weight_erosion_slow_own_bias"

# What is not said here is a rule's default.
ARMS: Arms = {
    "local": {},
    "fedavg": {},
    "fedavg_adam": {"algorithm": "fedavg", "server_optimizer": "adam"},
    "fedprox": {},
    "scaffold": {},
    "fedlin": {},
    "fine_tuning": {},
    "ditto": {},
    "apfl": {},
    "personal_intercept": {},
    "ensemble": {},
    "model_averaging": {},
    "fedfomo": {},
    "multi_krum": {},
    "coordinate_median": {},
    "geometric_median": {},
    "trimmed_mean": {},
    "centered_clipping": {},
    "weighted_gradient": {},
    "bias_correction": {},
    "weight_erosion": {},
    "weight_erosion_slow": {
        "algorithm": "weight_erosion",
        "distance_penalty": "auto",
        "erosion_share": 1.25,
        "size_penalty": 0.0,
    },
    "weight_erosion_slow_own_bias": {
        "algorithm": "weight_erosion",
        "distance_penalty": "auto",
        "erosion_share": 1.25,
        "size_penalty": 0.0,
        "weighting": "samples",
        "own_parameters": ["output_bias"],
    },
    "evidence_erosion": {},
    "evidence_erosion_decay": {"algorithm": "evidence_erosion", "decay": 2.4},
}


def settings() -> list[Setting]:
    """The studies, each with the users whom it is run for."""
    heart = load_study(study_path("heart-disease"))
    return [("breast-cancer", "home"), *(("heart-disease", user) for user in heart.hospitals)]


def plans() -> Sequence[CellPlan]:
    """A cell for each setting and seed; all arms of one are compared on the same patients."""
    return plans_of(settings(), range(SEEDS), ARMS)


def plans_of(chosen: Sequence[Setting], seeds: Sequence[int], arms: Arms) -> Sequence[CellPlan]:
    """The cells of some settings, one seed after another."""
    return [
        CellPlan(
            f"{study}-{user}-{seed}",
            {"study": study, "user": user, "seed": seed, "arms": dict(arms), "version": 2},
            rounds=1,
        )
        for seed in seeds
        for study, user in chosen
    ]


def study_of(config: Values) -> Study:
    """The shipped study with the cell's user, arms and seed."""
    return shipped_study(config["study"], **{key: config[key] for key in ("user", "arms", "seed")})


def run(config: Values, data_dir: Path | None, tick: Tick) -> Values:
    """Simulate one split."""
    reply = one_split(study_of(config), data_dir)
    tick()
    assert reply.base_rate is not None
    return {
        arm: {name: m.get(name) for name in ("log_loss", "accuracy", "auroc")}
        for arm, m in {**reply.arms, "base rate": reply.base_rate}.items()
    } | {"patients": reply.base_rate.num_patients}


def draw(cells: Mapping[str, Cell]) -> Page:
    """A summary over the settings, and a table for each."""
    heading = [
        "# Which rule wins?",
        "",
        "Every rule with its defaults, unless its name says more, on the shipped studies. That the",
        "slow and the evidence erosions are worth a try was found on the same patients, in trials",
        "before this page, so that theirs is an advantage; other patients are in",
        "[confirmation](../confirmation/README.md), and `erosion experiment tuned-rules` chooses",
        "settings inside the user's training part. `weight_erosion` is the paper's setting.",
        '`weight_erosion_slow` erodes slowly (`distance_penalty = "auto"`, `erosion_share = 1.25`,',
        "no size penalty), `..._own_bias` also counts samples and keeps the output bias at each",
        "hospital. Log loss of the user's test patients; ± is one standard error over splits,",
        "which share patients. AUROC is over the splits whose test part has both classes.",
    ]
    return RulePage(ARMS, SLOW, settings(), allows_for_sharing=True).draw(cells, heading)
