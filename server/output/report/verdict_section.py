"""The report's answer: the verdict, and how sure it is."""

from erosion.common.protocol.messages import FEWEST_OF_A_CLASS, Comparison
from erosion.server.output.report.html_table import text
from erosion.server.output.report.whole_page import day, verdict_box
from erosion.server.output.result_words import (
    absences,
    data_check,
    recounts,
    what_may_be_unseen,
)
from erosion.server.run.result import Result, digits_beyond, p_value_text

ONE_MORE = (
    " The study is strict (evaluation.strict): the share is counted as if there were one patient"
    " more, on whom the better arm errs as badly as the loss allows."
)


def verdict_section(result: Result) -> str:
    """The box, who was away, and what the verdict rests on; HTML."""
    heading = f"Study {text(result.study)}, for {text(result.user)}, {text(day(result.started))}"
    found = result.verdict.best_arm is not None
    away = "".join(
        f'<p class="note">{text(sentence)}</p>\n'
        for sentence in (*absences(result.absent), *recounts(result.recounts))
    )
    cautions = data_check(result.data_check, named_in="result.json")
    box = verdict_box(heading, result.verdict.text, found=found, cautions=cautions)
    return box + away + _how_sure(result)


def _how_sure(result: Result) -> str:
    comparison = result.comparison
    if comparison is None:
        return ""
    loss = result.task.metric(result.task.verdict_metric).label
    needs = result.task.verdict_needs.format(fewest=FEWEST_OF_A_CLASS, tested=result.tested)
    return (
        f'<p class="note">The verdict rests on one comparison, {text(comparison.arm)} with'
        f" {text(comparison.reference)}, declared before the run: a paired sign-flip test of the"
        f" {text(loss)} on the same {comparison.num_patients} {result.tested}{_group(result)}. The"
        f" mean difference is {_signed(comparison.mean_difference)} (below 0,"
        f" {text(comparison.arm)} is better)."
        f" {_what_chance_does(result, comparison)} A difference is claimed only where"
        f" this share is at most {100 * comparison.level:g} % and {text(needs)}."
        f"{_how_p_moves(comparison)}"
        f"{ONE_MORE if comparison.strict else ''}"
        f"{_what_is_assumed(result, comparison)}"
        " The rest of this page describes; it proves nothing.</p>"
    )


def _group(result: Result) -> str:
    """How many of them are of the group that the verdict needs, where that is not all."""
    comparison = result.comparison
    if comparison is None or comparison.smallest_class == comparison.num_patients:
        return ""
    return f", at least {comparison.smallest_class} of them {text(result.task.group_word)}"


def _what_chance_does(result: Result, comparison: Comparison) -> str:
    """What the p-value says, which is less where the models share most of their patients."""
    share = _share(comparison.p_value, comparison.level)
    if result.cross_fitting is None:
        return (
            "Were the two equally good, chance alone would give a difference as large in"
            f" {share} of such studies."
        )
    return (
        "Were every patient’s difference as likely the other way round, as large a mean would come"
        f" of {share} of all draws. That is not how often chance gives one: the folds’ models share"
        " most of their patients, so that arms that hardly differ are told apart more often, and"
        " the level is stricter than for a test part."
    )


def _how_p_moves(comparison: Comparison) -> str:
    """How far p is a matter of luck: of sign patterns, of cuts into folds, and of training."""
    low, high = (p_value_text(p, comparison.level) for p in comparison.p_band)
    drawn = f" Other random sign patterns would give a p of {low} to {high}." if low != high else ""
    if cuts := comparison.p_by_cut:
        low, high = (p_value_text(p, comparison.level) for p in (min(cuts), max(cuts)))
        return f"{drawn} By single cuts into folds p is {low} to {high}."
    return (
        f"{drawn} At another installation sites train in another order of patients, so the same"
        " study and seed give another p there; how far it moves one run does not show, and"
        " evaluation.repeats does."
    )


def _what_is_assumed(result: Result, comparison: Comparison) -> str:
    """What the test cannot see."""
    return (
        " The test knows only patients like these."
        f" {text(what_may_be_unseen(comparison.num_patients, result.class_counts, result.task))}"
    )


def _signed(value: float) -> str:
    """With the digits that show on which side of 0 it is; without a sign where six show none."""
    digits = next((digits for digits in range(3, 7) if round(value, digits)), None)
    return "0.000" if digits is None else f"{value:+.{digits}f}".replace("-", "−")


def _share(p_value: float, level: float) -> str:
    """In percent, with the digits that show on which side of the level it is."""
    if p_value < 0.001:
        return "fewer than 0.1 %"
    if p_value >= 0.1:
        return f"{100 * p_value:.0f} %"
    return f"{100 * p_value:.{digits_beyond(level, p_value)}g} %"
