"""Looks ahead at the runs in which some of the user's patients are held out, before the first."""

from collections.abc import Callable, Iterator

from erosion.client.site_file import Site
from erosion.client.training.limits import check_limits
from erosion.common.errors import Refusal
from erosion.common.learning.local_work import PatientCounts
from erosion.common.rounds.selection import candidates, folds_ahead, trial
from erosion.common.study.sections import Fold, folds_key
from erosion.common.study.study import Study


def check_parts(site: Site, study: Study, counts_in: Callable[[Study], PatientCounts]) -> None:
    """Refuse a whole study whose folds or trials would be refused, when others have run.

    `counts_in`: the training patients here of a fold's study, asked for once: a large hospital's
    split takes seconds. Raises Refusal and DataError.
    """
    if not (folds := folds_ahead(study)):
        return
    # The first is the largest, so that the fewest are left; of one class, without any of them.
    of_classes = site.limits.min_class > 1 and site.name == study.user
    for fold in folds if of_classes else folds[:1]:
        counts = counts_in(study.model_copy(update={"fold": fold}))
        for part in _parts(study, fold):
            try:
                check_limits(site, part, counts)
            except Refusal as problem:
                where = f"Where a fold is held out ({folds_key(folds)} = {fold.of})"
                raise Refusal(f"{where}: {problem}") from None


def _parts(study: Study, fold: Fold) -> Iterator[Study]:
    """Without that fold: by each candidate where there are such, of the same patients each."""
    if study.selection is None:
        yield study.model_copy(update={"fold": fold})
        return
    for arm in study.arms:
        for settings in candidates(study, arm):
            yield trial(study, arm, settings, fold)
