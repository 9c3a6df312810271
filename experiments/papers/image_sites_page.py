"""The page of the image studies: each hospital's figures, and ours minus others with intervals."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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
from erosion.experiments.papers.paired import INTERVALS, LEVEL, Difference, paired_difference
from erosion.experiments.papers.rule_page import RECOMMENDED
from erosion.experiments.standard_error import in_words
from erosion.experiments.testbed import study_path

LABELS: Mapping[str, str] = {"accuracy": "accuracy", "auroc": "AUROC", "log_loss": "log loss"}
SIGNS: Mapping[str, int] = {"accuracy": 1, "auroc": 1, "log_loss": -1}  # 1: the higher the better
OURS = (RECOMMENDED, "evidence_erosion")
OTHERS = ("local", LOCAL_STOPPED, "fedavg", "fine_tuning")
ROWS = (MAJORITY, "local", LOCAL_STOPPED, POOLED, *(arm for arm in ARMS if arm != "local"))
EVERY = "mean of all"  # users
FEWEST_SPLITS = 4  # of an interval: with fewer it is wider than the metric itself

BySplit = Mapping[int, Values]  # split -> figures
ByUser = Mapping[str, BySplit]


def draw(cells: Mapping[str, Cell]) -> Page:
    """A section for each study of which a cell was run."""
    lines = [
        "# Image studies: real sites and skewed labels",
        "",
        "A small convolutional network trained on the hospitals' pictures, with each hospital as",
        "the user. Every rule has its defaults; `weight_erosion` is the paper's setting, and",
        "`evidence_erosion` has `noise_margin = 0`, as it advises for networks. *majority* says",
        "to everybody how common each class is among the user's training pictures;",
        "*local_stopped* trains alone for a number of rounds that is chosen on a third of the",
        "user's training pictures; *pooled* is trained on all hospitals' pictures in one place.",
        "AUROC is the mean over the classes of the test part, each against the rest. ± is one",
        "standard error over splits.",
        "",
    ]
    for study in STUDIES:
        found = _figures_of(study, cells)
        if found:
            lines += _section(study, found)
    return Page("\n".join(lines))


def _figures_of(study: str, cells: Mapping[str, Cell]) -> ByUser:
    found: dict[str, dict[int, Values]] = {}
    for user in users_of(study):
        for cell in cells.values():
            config = cell.plan.config
            if (config["study"], config["user"]) == (study, user):
                found.setdefault(user, {})[config["seed"]] = cell.figures
    return found


def _section(study: str, found: ByUser) -> list[str]:
    lines = [f"## {_TITLES[study]}", "", *_setting(study, found), ""]
    for metric in METRICS:
        lines += _table(metric, found)
    comparisons = list(_comparisons(found))
    if comparisons:
        lines += [*_against_others(comparisons), *_supported(comparisons)]
    return lines + (_weights(study, found) if len(users_of(study)) > 1 else [])


_TITLES: Mapping[str, str] = {
    "ham10000": "HAM10000: four collections of skin lesions",
    "cifar10": "CIFAR-10: skewed labels",
}
_ABOUT: Mapping[str, Sequence[str]] = {
    "ham10000": (
        "Seven diagnoses, of which naevi are the commonest. All pictures of a lesion are on one",
        "side of a split, and lesions of two collections are left out. Splits share pictures: an",
        "interval is about splits of these collections.",
    ),
    "cifar10": (
        "Every split draws five other hospitals, and so other shares of the ten classes; few",
        "images are in two of them.",
    ),
}


def _setting(study: str, found: ByUser) -> list[str]:
    shipped = load_study(study_path(study))
    training = shipped.training
    tested = ", ".join(
        f"{user} {len(splits)} ({fmean(f['pictures'] for f in splits.values()):.0f} test pictures;"
        f" alone stopped after {fmean(f[LOCAL_STOPPED]['rounds'] for f in splits.values()):.1f}"
        " rounds)"
        for user, splits in found.items()
    )
    return [
        *_ABOUT[study],
        "",
        f"{shipped.rounds} rounds of {training.steps} steps with {training.batch_size} pictures,"
        f" learning rate {training.learning_rate:g}. Splits: {tested}.",
    ]


def _table(metric: str, found: ByUser) -> list[str]:
    """An arm a line: the metric for each user, and the mean over users."""
    rows = []
    for arm in ROWS:
        means, cells = [], []
        for splits in found.values():
            values = [f[arm][metric] for f in splits.values() if f[arm][metric] is not None]
            means += [fmean(values)] if values else []
            cells.append(
                in_words(values) if len(values) > 1 else "".join(f"{v:.3f}" for v in values)
            )
        mean = f"{fmean(means):.3f}" if len(means) == len(found) else ""
        rows.append(f"| {arm} | {' | '.join(cells)} |" + (f" {mean} |" if len(found) > 1 else ""))
    last = ["mean"] if len(found) > 1 else []
    return [
        f"| {LABELS[metric]} | {' | '.join([*found, *last])} |",
        f"| --- |{' --- |' * (len(found) + len(last))}",
        *rows,
        "",
    ]


@dataclass(frozen=True, slots=True)
class _Comparison:
    """One of our rules and another arm, by one metric, for one user or the mean of all."""

    user: str
    ours: str
    other: str
    metric: str
    difference: Difference | None  # None: too few splits have both

    def is_better(self) -> bool:
        return self.difference is not None and self.difference.mean * SIGNS[self.metric] > 0


def _comparisons(found: ByUser) -> Iterator[_Comparison]:
    """Those of every user with so many splits; intervals hold for all together."""
    users = [user for user, splits in found.items() if len(splits) >= FEWEST_SPLITS]
    whole = set.intersection(*(set(splits) for splits in found.values()))
    if len(found) > 1 and len(whole) >= FEWEST_SPLITS:
        users.append(EVERY)
    count = len(users) * len(OURS) * len(OTHERS) * len(METRICS)
    for user in users:
        for ours in OURS:
            for metric in METRICS:
                for other in OTHERS:
                    both = _both(found, user, metric, ours, other)
                    apart = (
                        paired_difference(*zip(*both, strict=True), comparisons=count)
                        if len(both) >= FEWEST_SPLITS
                        else None
                    )
                    yield _Comparison(user, ours, other, metric, apart)


def _both(
    found: ByUser, user: str, metric: str, ours: str, other: str
) -> list[tuple[float, float]]:
    """The metric of both arms, by split; for `EVERY` the means over users."""
    users = list(found) if user == EVERY else [user]
    pairs = []
    for split in sorted(set.intersection(*(set(found[name]) for name in users))):
        figures = [found[name][split] for name in users]
        values = [[one[arm][metric] for one in figures] for arm in (ours, other)]
        if None not in [*values[0], *values[1]]:
            pairs.append((fmean(values[0]), fmean(values[1])))
    return pairs


def _against_others(comparisons: Sequence[_Comparison]) -> list[str]:
    lines = [
        "### Ours minus others",
        "",
        f"{INTERVALS}, {100 * (1 - LEVEL):g} % for all {len(comparisons)} together; \\*: leaves out"
        " 0. Accuracy and AUROC above 0, and log loss below 0, speak for ours. Users with fewer"
        f" than {FEWEST_SPLITS} splits are left out, and so is the mean over users where not all"
        " have as many in common.",
        "",
    ]
    for metric in METRICS:
        lines += [f"| {LABELS[metric]} | | {' | '.join(OTHERS)} |", "| --- |" + " --- |" * 5]
        for user in dict.fromkeys(c.user for c in comparisons):
            for ours in OURS:
                cells = [
                    c.difference.text() if c.difference else ""
                    for c in comparisons
                    if (c.user, c.ours, c.metric) == (user, ours, metric)
                ]
                lines.append(f"| {user} | {ours} | {' | '.join(cells)} |")
        lines.append("")
    return lines


def _supported(comparisons: Sequence[_Comparison]) -> list[str]:
    """The differences that an interval supports, in sentences."""
    told = [c for c in comparisons if c.difference and c.difference.leaves_out_zero]
    lines = [f"An interval leaves out 0 in {len(told)} of {len(comparisons)} comparisons."]
    for ours in OURS:
        for word, is_better in (("better", True), ("worse", False)):
            of = [
                f"{c.other} for {c.user} ({LABELS[c.metric]})"
                for c in told
                if (c.ours, c.is_better()) == (ours, is_better)
            ]
            lines.append(f"- `{ours}` is {word} than {', '.join(of) if of else 'none of them'}.")
    return [lines[0], "", *lines[1:], ""]


def _weights(study: str, found: ByUser) -> list[str]:
    """Each hospital's weight at each user, the mean over rounds and splits."""
    hospitals = users_of(study)
    rows = []
    for user, splits in found.items():
        for arm in WEIGHING:
            by_hospital = [
                "own"
                if name == user
                else f"{fmean(f[arm]['weights'][name] for f in splits.values()):.2f}"
                for name in hospitals
            ]
            rows.append(f"| {user} | {arm} | {' | '.join(by_hospital)} |")
    return [
        "### Weights",
        "",
        "Relative to the user's own, the mean over rounds and splits.",
        "",
        f"| user | | {' | '.join(hospitals)} |",
        f"| --- | --- |{' --- |' * len(hospitals)}",
        *rows,
        "",
    ]
