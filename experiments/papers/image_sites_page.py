"""The page of the image studies: each hospital's figures, and ours minus others with intervals."""

from collections.abc import Mapping, Sequence
from statistics import fmean

from erosion.common.study.study import load_study
from erosion.experiments.cells import Cell, Values
from erosion.experiments.experiment import Page
from erosion.experiments.papers.image_sites import (
    ARMS,
    LOCAL_STOPPED,
    MAJORITY,
    METRICS,
    POOLED,
    STUDIES,
    WEIGHING,
    users_of,
)
from erosion.experiments.papers.rules import RECOMMENDED
from erosion.experiments.tables import (
    Comparison,
    comparison_table,
    comparisons,
    figures_of,
    in_words,
    intervals,
    paragraph,
    table,
)
from erosion.experiments.testbed import study_path

LABELS: Mapping[str, str] = {"accuracy": "accuracy", "auroc": "AUROC", "log_loss": "log loss"}
SIGNS: Mapping[str, int] = {"accuracy": 1, "auroc": 1, "log_loss": -1}  # 1: the higher the better
OURS = (RECOMMENDED, "evidence_erosion")
OTHERS = ("local", LOCAL_STOPPED, "fedavg", "fine_tuning")
ROWS = (MAJORITY, "local", LOCAL_STOPPED, POOLED, *(arm for arm in ARMS if arm != "local"))
EVERY = "mean of all"  # users
FEWEST_SPLITS = 4  # of an interval: with fewer it is wider than the metric itself

ByUser = Mapping[str, Mapping[int, Values]]  # user -> split -> figures


def draw(cells: Mapping[str, Cell]) -> Page:
    """A section for each study of which a cell was run."""
    lines = [
        "# Image studies: real sites and skewed labels",
        "",
        *paragraph(
            "A small convolutional network trained on the hospitals' pictures, with each hospital"
            " as the user. Every rule has its defaults; `weight_erosion` is the paper's setting,"
            " and `evidence_erosion` has `noise_margin = 0`, as it advises for networks. *majority*"
            " says to everybody how common each class is among the user's training pictures;"
            " *local_stopped* trains alone for a number of rounds that is chosen on a third of the"
            " user's training pictures; *pooled* is trained on all hospitals' pictures in one"
            " place. AUROC is the mean over the classes of the test part, each against the rest. ±"
            " is one standard error over splits."
        ),
    ]
    for study in STUDIES:
        found: dict[str, dict[int, Values]] = {}
        for user in users_of(study):
            for cell in cells.values():
                config = cell.plan.config
                if (config["study"], config["user"]) == (study, user):
                    found.setdefault(user, {})[config["seed"]] = cell.figures
        if found:
            lines += [f"## {_TITLES[study]}", "", *paragraph(_ABOUT[study])]
            lines += paragraph(_setting(study, found))
            for metric in METRICS:
                lines += _table(metric, found)
            lines += _against_others(found)
            if len(users_of(study)) > 1:
                lines += _weights(study, found)
    return Page("\n".join(lines))


_TITLES: Mapping[str, str] = {
    "ham10000": "HAM10000: four collections of skin lesions",
    "cifar10": "CIFAR-10: skewed labels",
}
_ABOUT: Mapping[str, str] = {
    "ham10000": "Seven diagnoses, of which naevi are the commonest. All pictures of a lesion are on"
    " one side of a split, and lesions of two collections are left out. Splits share pictures: an"
    " interval is about splits of these collections.",
    "cifar10": "Every split draws five other hospitals, and so other shares of the ten classes; few"
    " images are in two of them.",
}


def _setting(study: str, found: ByUser) -> str:
    shipped = load_study(study_path(study))
    training = shipped.training
    tested = ", ".join(
        f"{user} {len(splits)} ({fmean(f['pictures'] for f in splits.values()):.0f} test pictures;"
        f" alone stopped after {fmean(f[LOCAL_STOPPED]['rounds'] for f in splits.values()):.1f}"
        " rounds)"
        for user, splits in found.items()
    )
    return (
        f"{shipped.rounds} rounds of {training.steps} steps with {training.batch_size} pictures,"
        f" learning rate {training.learning_rate:g}. Splits: {tested}."
    )


def _table(metric: str, found: ByUser) -> list[str]:
    """An arm a line: the metric for each user, and the mean over users."""
    rows = []
    for arm in ROWS:
        values = [figures_of(splits.values(), arm, metric) for splits in found.values()]
        row = [arm, *map(in_words, values)]
        if len(found) > 1:
            row.append(f"{fmean(map(fmean, values)):.3f}" if all(values) else "")
        rows.append(row)
    last = ["mean"] if len(found) > 1 else []
    return table([LABELS[metric], *found, *last], rows)


def _mean_of_users(found: ByUser) -> list[Values]:
    """The means over users, of the splits that all of them have."""
    figures: list[Values] = []
    for split in sorted(set.intersection(*(set(splits) for splits in found.values()))):
        of_users = [splits[split] for splits in found.values()]
        means: dict[str, dict[str, float | None]] = {}
        for arm in (*OURS, *OTHERS):
            for metric in METRICS:
                values = [one[arm][metric] for one in of_users]
                mean = None if None in values else fmean(values)
                means.setdefault(arm, {})[metric] = mean
        figures.append(means)
    return figures


def _against_others(found: ByUser) -> list[str]:
    """Of every user with so many splits, and of the mean of all; intervals hold together."""
    measured = {user: list(splits.values()) for user, splits in found.items()}
    if len(found) > 1:
        measured[EVERY] = _mean_of_users(found)
    measured = {user: splits for user, splits in measured.items() if len(splits) >= FEWEST_SPLITS}
    every = list(comparisons(measured, OURS, OTHERS, METRICS, fewest=FEWEST_SPLITS))
    if not every:
        return []
    return [
        "### Ours minus others",
        "",
        *paragraph(
            intervals(f"all {len(every)}"),
            "\\*: leaves out 0. Accuracy and AUROC above 0, and log loss below 0, speak for ours."
            f" Users with fewer than {FEWEST_SPLITS} splits are left out, and so is the mean over"
            " users where not all have as many in common.",
        ),
        *comparison_table(every, LABELS),
        *_supported(every),
    ]


def _supported(every: Sequence[Comparison]) -> list[str]:
    """The differences that an interval supports, in sentences."""
    clear = [(one, d) for one in every if (d := one.difference) and d.leaves_out_zero]
    lines = [f"An interval leaves out 0 in {len(clear)} of {len(every)} comparisons.", ""]
    for ours in OURS:
        for word, sign in (("better", 1), ("worse", -1)):
            of = [
                f"{one.other} for {one.setting} ({LABELS[one.metric]})"
                for one, apart in clear
                if one.ours == ours and apart.mean * SIGNS[one.metric] * sign > 0
            ]
            lines.append(f"- `{ours}` is {word} than {', '.join(of) or 'none of them'}.")
    return [*lines, ""]


def _weights(study: str, found: ByUser) -> list[str]:
    """Each hospital's weight at each user, the mean over rounds and splits."""
    hospitals = users_of(study)
    rows = [
        [
            user,
            arm,
            *(
                "own"
                if name == user
                else f"{fmean(f[arm]['weights'][name] for f in splits.values()):.2f}"
                for name in hospitals
            ),
        ]
        for user, splits in found.items()
        for arm in WEIGHING
    ]
    return [
        "### Weights",
        "",
        "Relative to the user's own, the mean over rounds and splits.",
        "",
        *table(["user", "", *hospitals], rows),
    ]
