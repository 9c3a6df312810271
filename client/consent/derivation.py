"""Recognises the studies that an approved study itself leads to.

A study with `user = "all"` becomes one study for each user; one that leaves settings open becomes
trials, which hold out a fold, and in the end the study with its settings chosen. A person approved
the study that leads to them; whatever it does not lead to was not approved.
"""

from collections.abc import Iterator

from erosion.common.errors import ErosionError
from erosion.common.rounds.selection import candidates, fold_studies, trials
from erosion.common.settings.base import validate
from erosion.common.study.study import Study

_KEPT = ("name", "hospitals", "rounds", "seed")  # by whatever a study leads to


def leads_to(approved: Study, study: Study) -> bool:
    """`study` is the approved one, or one that comes of it by its own rules."""
    if study.digest == approved.digest:
        return True
    if any(getattr(approved, key) != getattr(study, key) for key in _KEPT):
        return False  # seen at once, where what follows makes studies
    if approved.has_every_user:
        if study.user not in approved.hospitals:
            return False
        approved = approved.for_user(study.user)
        if study.digest == approved.digest:
            return True
    if approved.evaluation.folds is not None:
        return any(fold.digest == study.digest for fold in fold_studies(approved))
    if approved.selection is None:
        return False
    return _is_trial(approved, study) if study.fold is not None else _is_chosen(approved, study)


def derived(approved: Study) -> Iterator[Study]:
    """The studies that it leads to, but those with chosen settings, of which there may be many."""
    if approved.has_every_user:
        for user in approved.hospitals:
            yield from derived(approved.for_user(user))
        return
    yield approved
    if approved.evaluation.folds is not None:
        yield from fold_studies(approved)
    elif approved.selection is not None:
        for arm in approved.arms:
            for folds in trials(approved, arm):
                yield from folds


def _is_trial(approved: Study, study: Study) -> bool:
    arms = [arm for arm in study.arms if arm in approved.arms]
    if len(arms) != 1:
        return False
    return any(
        trial.digest == study.digest for folds in trials(approved, arms[0]) for trial in folds
    )


def _is_chosen(approved: Study, study: Study) -> bool:
    """Each arm has one of its candidates, and nothing else differs."""
    if list(study.arms) != list(approved.arms):
        return False
    arms = {}
    for name, arm in study.arms.items():
        own = approved.arms[name].model_dump()
        found = arm.model_dump()
        if not any(
            {**own, **_as_written(approved, name, tried)} == found
            for tried in candidates(approved, name)
        ):
            return False
        arms[name] = found
    chosen = Study.model_validate({**approved.model_dump(), "arms": arms, "selection": None})
    return chosen.digest == study.digest


def _as_written(approved: Study, arm: str, tried: object) -> dict[str, object]:
    """A candidate's settings with the values that validation makes of them."""
    raw = {**approved.arms[arm].model_dump(mode="json"), **dict(tried)}  # type: ignore[call-overload]
    try:
        settings = validate(type(approved.arms[arm]), raw, "candidate", ErosionError)
    except ErosionError:
        return {"": None}  # equal to nothing
    return settings.model_dump()
