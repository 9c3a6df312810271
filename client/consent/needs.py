"""What a study needs of this hospital's limits and budgets."""

from collections.abc import Iterator
from dataclasses import dataclass

from erosion.client.records.answers import Used
from erosion.client.site_file import Budget, Site
from erosion.common.rounds.selection import candidates, folds_of
from erosion.common.study.study import Study


@dataclass(frozen=True, slots=True)
class Needs:
    """What a hospital answers at most in one run of a study, in all its parts."""

    runs: int  # as sites count them: one per user
    rounds: int  # of the arms that ask it, including trials and folds
    evaluations: int  # number of final figures


def needs_of(site: Site, study: Study) -> Needs:
    """Return what one run of `study` needs here, with all parts of a run for every user."""
    users = set(study.hospitals) if study.has_every_user else {study.user}
    own = int(site.name in users and site.limits.as_user)
    others = len(users - {site.name})
    return Needs(
        runs=own + others,
        rounds=own * _rounds(study, is_user=True) + others * _rounds(study, is_user=False),
        evaluations=own,
    )


def lacking(budget: Budget, used: Used, needs: Needs) -> Iterator[str]:
    """Yield the budgets that have less left for one coordinator than one more run needs."""
    if (left := max(0, budget.rounds - used.rounds)) < needs.rounds:
        yield (
            f"a run of it has up to {needs.rounds} rounds of arms, and {left} are left"
            f" (budget.rounds = {budget.rounds})"
        )
    if (left := max(0, budget.evaluations - used.evaluations)) < needs.evaluations:
        yield (
            f"a run of it ends with final figures, and they are left {left} times"
            f" (budget.evaluations = {budget.evaluations})"
        )


def most_runs(site: Site, study: Study) -> int:
    """Return the number of runs of `study` that are answered, as sites count them: per user."""
    return site.budget.runs_per_study * max(1, needs_of(site, study).runs)


def longest_arm(study: Study) -> int:
    """Return the most rounds of an arm, in the study or its trials."""
    is_tried = study.selection is not None or study.selection_fold is not None
    return study.rounds + is_tried


def rounds_asked(study: Study) -> int:
    """Return the rounds of an arm of this study alone; a trial also measures its last round."""
    return study.rounds + (study.selection_fold is not None)


def num_trials(study: Study, arm: str) -> int:
    """Return the number of trials that choose the arm's settings."""
    if study.selection is None:
        return 0
    return len(candidates(study, arm)) * len(study.selection.trial_folds())


def _rounds(study: Study, *, is_user: bool) -> int:
    """Return the rounds of one user's run; predicting a fold counts as a round of the user."""
    arms = [name for name, arm in study.arms.items() if is_user or not arm.user_only]
    whole = study.rounds * len(arms)
    tried = sum(num_trials(study, arm) for arm in arms) * longest_arm(study)
    return whole + tried + len(folds_of(study)) * (whole + is_user)
