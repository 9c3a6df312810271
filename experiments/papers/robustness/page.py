"""The robustness page: every figure in it is drawn from a summary."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isnan

from erosion.experiments.cells import Cell
from erosion.experiments.experiment import Page
from erosion.experiments.papers.robustness.attacks import ATTACKS, NO_ATTACK
from erosion.experiments.papers.robustness.grid import (
    ATTACKERS,
    CLAIM_ONLY,
    ERODING,
    METHODS,
    RECOMMENDED,
)
from erosion.experiments.papers.robustness.summary import (
    ALONE,
    NOTABLE,
    Mean,
    Row,
    Summary,
    Zero,
    summarise,
)
from erosion.experiments.tables import LEVEL

INTRODUCTION = f"""\
# One harmful hospital

What happens to the user's model when one of the other hospitals does harm, for every method that a
study can name. The studies are those that come with the program; every method runs with its
defaults, which for `{ERODING}` are those of its paper: `{RECOMMENDED}` has
`preset = "recommended"`. The seed decides the training and the user's test patients (in
breast-cancer also which patient is at which hospital), so the standard errors are about such
splits, not about other patients.

In breast-cancer the attacker is `miscoded`, whose labels the study has the wrong way round. Here
its labels are put right unless the attack is the label flip, so without an attack it is an honest
hospital with the user's own population. In heart-disease it is `hungary`, the peer with the most
patients, whom methods that weight by patients trust most.

Three references stand beside the attacks: no attack; the attacker absent, which is what a perfect
defence would leave; and the method `{ALONE}`, which hears nobody. A user is called harmed where its
log loss is above that with the attacker absent, and worse than alone where it is above that of
`{ALONE}`, by Student's one-sided test of the paired differences over the seeds, at
{100 * LEVEL:g} % for all comparisons of a study together (Bonferroni). With few seeds hardly
anything passes it: not being called harmed is no proof of safety. A mean harm of more than
{NOTABLE:g} that does not pass is listed as unclear. ± is one standard error over the seeds. How
accurate it is to name the commonest class stands in
[which rule wins](../which-rule/README.md).

The attacker hears all updates of the round before it sends its own. What a method sends beside
the update (SCAFFOLD's control variate, FedLin's gradient, the noise of `{CLAIM_ONLY}`) stays
honest, except with the free rider and the claimed noise. Nobody lies about its number of patients,
to which methods that weight by it would be open; and neither study sets
`federation.max_update_norm`, which rejects long updates.
"""


def draw(cells: Mapping[str, Cell]) -> Page:
    """Who fails under which attack, and all figures behind that."""
    found = (summarise(name, cells.values()) for name in ATTACKERS)
    text = page([summary for summary in found if summary is not None])
    return Page(text)


def page(summaries: Sequence[Summary]) -> str:
    """The tables, as Markdown."""
    attacks = [f"- {attack.title}: {attack.explanation}" for attack in ATTACKS.values()]
    parts = [INTRODUCTION, "The attacker ...\n", "\n".join(attacks) + "\n"]
    return "\n".join([*parts, *(_of_study(summary) for summary in summaries)])


def _of_study(summary: Summary) -> str:
    return "\n\n".join(
        [
            f"## {summary.study}",
            _about(summary),
            "### Who fails",
            _failures(summary),
            "### Log loss of the user",
            _metric(summary, lambda row: row.log_loss),
            "### Accuracy of the user",
            _metric(summary, lambda row: row.accuracy),
            "### When Weight Erosion takes a weight to zero",
            "The median round over the seeds in which the weight reached zero, the earliest and\n"
            "the latest, and how many seeds those are. A weight of zero never rises again.",
            *(_erosion(summary, method) for method in _eroding(summary)),
            "### The attacker's weight at the end",
            "Relative to the user's own update, which counts 1 (or, where a rule leaves that out,\n"
            "to the largest); the median over the seeds, – where none is known. Coordinate rules\n"
            "say for how much of the model a hospital's value was used.",
            _weights(summary),
            "",
        ]
    )


def _about(summary: Summary) -> str:
    alone, num_hospitals = _row(summary, ALONE, NO_ATTACK), len(summary.hospitals)
    unfit = [method for method in METHODS if method not in _methods(summary)]
    limit = summary.rows[0].limit
    passes = (
        "With a single seed none is called clear."
        if isnan(limit)
        else f"Of {2 * len(summary.rows)} comparisons, one passes where the mean is more than"
        f" {limit:.3g} standard errors above 0."
    )
    left_out = f"\nThese methods do not fit the study: {', '.join(unfit)}." if unfit else ""
    return (
        f"{len(summary.seeds)} seeds, {summary.rounds} rounds, {num_hospitals} hospitals; attacker:"
        f" `{summary.attacker}`.\n{passes}\nAlone, the user has a log loss of"
        f" {_plus_minus(alone.log_loss)} and an accuracy of"
        f" {_plus_minus(alone.accuracy)}.\nKrum and Multi-Krum are made for at most"
        f" {max(0, num_hospitals - 3) // 2} harmful among {num_hospitals}."
        f"{left_out}"
    )


def _failures(summary: Summary) -> str:
    lines = []
    for name, attack in ATTACKS.items():
        found = [row for row in summary.rows if row.attack == name]
        lines.append(
            [
                attack.title,
                _named((r.method, r.to_absent) for r in found if r.harmed),
                _named((r.method, r.to_absent) for r in found if r.perhaps_harmed),
                _named((r.method, r.to_alone) for r in found if r.below_alone),
            ]
        )
    return (
        "In brackets: how much the log loss is above that with the attacker absent, and in the last"
        "\ncolumn above that of the user alone. Without an attack, harm means that an honest"
        f"\n`{summary.attacker}` makes the model worse.\n\n"
        + _table(["", "harmed", "unclear", "worse than alone"], lines)
    )


def _named(found: Iterable[tuple[str, Mean]]) -> str:
    return ", ".join(f"{method} ({apart.mean:+.3f})" for method, apart in found) or "none"


def _metric(summary: Summary, of: Callable[[Row], Mean]) -> str:
    lines = []
    for method in _methods(summary):
        found = (summary.row(method, attack) for attack in ATTACKS)
        lines.append([method, *(_plus_minus(of(row)) if row else "" for row in found)])
    return _table(["", *(attack.title for attack in ATTACKS.values())], lines)


def _eroding(summary: Summary) -> list[str]:
    return [method for method in (ERODING, RECOMMENDED) if method in _methods(summary)]


def _erosion(summary: Summary, method: str) -> str:
    names = [*_row(summary, method, NO_ATTACK).zero_rounds]
    names = [summary.attacker, *(name for name in names if name != summary.attacker)]
    lines = []
    for name, attack in ATTACKS.items():
        if row := summary.row(method, name):
            cells = [_zero(row.zero_rounds[peer]) for peer in names]
            lines.append([attack.title, *(cells if attack.answers else ["", *cells[1:]])])
    return _table([f"`{method}`", f"{summary.attacker} (attacker)", *names[1:]], lines)


def _weights(summary: Summary) -> str:
    lines = []
    for method in _methods(summary):
        found = [summary.row(method, attack) for attack in ATTACKS]
        lines.append([method, *("" if row is None else _weight(row.weight) for row in found)])
    return _table(["", *(attack.title for attack in ATTACKS.values())], lines)


def _weight(weight: float | None) -> str:
    return "–" if weight is None else f"{weight:.2g}"


def _zero(zero: Zero) -> str:
    if zero.middle is None:
        return f"never (0 of {zero.of})"
    return f"{zero.middle:g} ({zero.first} to {zero.last}; {zero.seeds} of {zero.of})"


def _plus_minus(value: Mean) -> str:
    return f"{value.mean:.3f}" + ("" if isnan(value.error) else f" ± {value.error:.3f}")


def _methods(summary: Summary) -> list[str]:
    return list(dict.fromkeys(row.method for row in summary.rows))


def _row(summary: Summary, method: str, attack: str) -> Row:
    row = summary.row(method, attack)
    assert row is not None, f"{summary.study} has no {method} under {attack}"
    return row


def _table(header: Iterable[str], lines: Iterable[Sequence[str]]) -> str:
    names = list(header)
    drawn = [names, ["---"] * len(names), *lines]
    return "\n".join("| " + " | ".join(line) + " |" for line in drawn)
