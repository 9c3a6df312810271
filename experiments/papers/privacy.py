"""The cost of differential privacy: the default study with several epsilons, over splits.

Each arm is a separate study, so that all of epsilon is spent on it. The settings of the private
step were chosen on other splits, which are shown, too.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from erosion.simulation.testbed import study_path
from erosion_common.study.study import Study, load_study
from experiments.cells import Cell, CellPlan, Values
from experiments.experiment import experiment
from experiments.page import Page, grid, named, page
from experiments.splits import one_split
from experiments.tables import in_words, intervals, one_or_range, paired_difference

STUDY, SEEDS, AT_ONCE, ROUNDS = "breast-cancer", 40, 10, 10
ARMS = ("weight_erosion", "fedavg")  # as the study has them
EPSILONS = (8.0, 3.0, 1.0)
CHOSEN: Mapping[float, tuple[float, float]] = {8.0: (4.0, 1.0), 3.0: (2.0, 1.0), 1.0: (2.0, 1.0)}
TRIED = ((4.0, 1.0), (2.0, 1.0), (1.0, 1.0))  # learning rate, clip norm
TRIAL_SEEDS = range(1000, 1010)


def plans() -> Sequence[CellPlan]:
    """Return the trials of settings, then every arm with every epsilon, ten splits in a cell."""
    found = []
    for epsilon in EPSILONS:
        for rate, clip in TRIED:
            name = f"trial-epsilon{epsilon:g}-rate{rate:g}-clip{clip:g}"
            found.append(_plan(name, "weight_erosion", _terms(epsilon, rate, clip), TRIAL_SEEDS))
    for first in range(0, SEEDS, AT_ONCE):
        seeds = range(first, first + AT_ONCE)
        found.append(_plan(f"local-{first}", "local", None, seeds))
        for arm in ARMS:
            found.append(_plan(f"{arm}-none-{first}", arm, None, seeds))
            for epsilon in EPSILONS:
                terms = _terms(epsilon, *CHOSEN[epsilon])
                found.append(_plan(f"{arm}-epsilon{epsilon:g}-{first}", arm, terms, seeds))
    return found


def _terms(epsilon: float, rate: float, clip: float) -> Values:
    return {"epsilon": epsilon, "learning_rate": rate, "clip_norm": clip}


def _plan(name: str, arm: str, privacy: Values | None, seeds: Sequence[int]) -> CellPlan:
    config = {
        "study": STUDY,
        "arm": arm,
        "settings": {},  # that replace the study's
        "privacy": privacy,
        "rounds": None if privacy is None else ROUNDS,
        "seeds": list(seeds),
    }
    return CellPlan(name, config)


def studies_of(config: Values) -> list[Study]:
    """Return the shipped study with the cell's one arm and its privacy, for each of the seeds."""
    raw = load_study(study_path(config["study"])).model_dump(mode="json")
    arm = config["arm"]
    raw["arms"] = {arm: raw["arms"][arm] | config["settings"]}
    raw["evaluation"] = {**raw["evaluation"], "compare": None}
    if config["privacy"] is not None:
        raw |= {"privacy": config["privacy"], "scaling": "user", "rounds": config["rounds"]}
    return [Study.model_validate({**raw, "seed": seed}) for seed in config["seeds"]]


def run(config: Values, data_dir: Path | None) -> Values:
    """Errors and log loss of the user's test patients, for each of the splits."""
    errors, losses, patients = [], [], 0
    for study in studies_of(config):
        found = one_split(study, data_dir).arms[config["arm"]]
        patients = found.num_patients
        errors.append(round((1 - found["accuracy"]) * patients))
        losses.append(round(found["log_loss"], 6))
    return {"errors": errors, "log_loss": losses, "patients": patients}


BySeed = Mapping[int, tuple[float, float]]  # errors and log loss of a split
COLUMNS: Mapping[str, float | None] = {"none": None} | {f"epsilon {e:g}": e for e in EPSILONS}


def draw(cells: Mapping[str, Cell]) -> Page:
    """Draw the price of each epsilon, and the settings that were tried."""
    patients = one_or_range([cell.figures["patients"] for cell in cells.values()] or [0])

    def entry(arm: str, epsilon: float | None) -> str:
        found = pooled(cells, arm, epsilon)
        if (arm == "local" and epsilon is not None) or len(found) < 2:
            return "–"
        errors, losses = zip(*found.values(), strict=True)
        return f"{in_words(errors, '.2f')} ({fmean(losses):.3f}), {len(found)} splits"

    def apart(row: tuple[str, str], epsilon: float | None) -> str:
        arm, other = row
        if other == arm and epsilon is None:
            return ""
        return _minus(pooled(cells, arm, epsilon), pooled(cells, other, None))

    def trial(tried: tuple[float, float], epsilon: float) -> str:
        rate, clip = tried
        cell = cells.get(f"trial-epsilon{epsilon:g}-rate{rate:g}-clip{clip:g}")
        mean = f"{fmean(cell.figures['errors']):.1f}" if cell else "–"
        return f"**{mean}**" if cell and CHOSEN[epsilon] == tried else mean

    against = {
        f"{arm} minus {words}": (arm, other)
        for arm in ARMS
        for words, other in (("local", "local"), ("itself as shipped", arm))
    }
    return page(
        "privacy",
        patients=patients,
        study=STUDY,
        rounds=ROUNDS,
        arms=grid("arm", named((*ARMS, "local")), COLUMNS, entry),
        intervals=intervals(f"all {COMPARISONS}"),
        differences=grid("", against, COLUMNS, apart),
        trial_splits=len(TRIAL_SEEDS),
        trials=grid(
            "learning rate, clip norm",
            {f"{rate:g}, {clip:g}": (rate, clip) for rate, clip in TRIED},
            {f"epsilon {epsilon:g}": epsilon for epsilon in EPSILONS},
            trial,
        ),
    )


COMPARISONS = len(ARMS) * (2 * len(EPSILONS) + 1)


def pooled(cells: Mapping[str, Cell], arm: str, epsilon: float | None) -> BySeed:
    """Return all splits that were run."""
    end = "" if arm == "local" else "-none" if epsilon is None else f"-epsilon{epsilon:g}"
    names = [f"{arm}{end}-{first}" for first in range(0, SEEDS, AT_ONCE)]
    found: dict[int, tuple[float, float]] = {}
    for cell in (cells[name] for name in names if name in cells):
        both = zip(cell.figures["errors"], cell.figures["log_loss"], strict=True)
        found |= zip(cell.plan.config["seeds"], both, strict=True)
    return found


def _minus(ours: BySeed, theirs: BySeed) -> str:
    """Of the splits that both have: a part of the cells may be of others."""
    seeds = [seed for seed in ours if seed in theirs]
    if len(seeds) < 2:
        return "–"
    errors = ([of[seed][0] for seed in seeds] for of in (ours, theirs))
    return paired_difference(*errors, comparisons=COMPARISONS).text("+.2f")


EXPERIMENT = experiment(
    "privacy",
    plans,
    run,
    draw,
    studies_of,
)
