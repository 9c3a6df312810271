"""Finds tables that have a patient's features on one row and the outcome on another."""

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from erosion.client.dataset.joined_rows import nearly_bare, on_other_rows, stand_apart
from erosion.client.dataset.missing_words import MISSING_MARKERS
from erosion.client.dataset.text_table import TextTable
from erosion.client.scaffold.column_profile import Profile
from erosion.client.scaffold.left_out import why_no_feature
from erosion.client.scaffold.patient_key import likely_key, repeats

MANY_BARE = 0.3  # of the rows with an outcome, without nearly any feature
FIRST = {"take": "first"}  # rows, as a draft joins them


def key_to_join_by(
    table: TextTable, profiles: Sequence[Profile], outcome: Collection[str]
) -> str | None:
    """The patient key, where rows with the outcome lack features that other rows have."""
    key = likely_key(profiles)
    features = [p.name for p in profiles if p.name not in outcome and not why_no_feature(p)]
    if key is None or not repeats(key) or not features:
        return None

    def lacking(names: Collection[str]) -> NDArray[np.bool_]:
        found = []
        for column in (table.columns[name] for name in names):
            absent = np.array([text.lower() in MISSING_MARKERS for text in column.texts])
            found.append(absent[column.codes])
        return np.stack(found, axis=1)

    kept: NDArray[np.bool_] = lacking(outcome).sum(axis=1) == 0
    is_missing = lacking(features)
    bare = nearly_bare(is_missing[kept])
    apart = stand_apart(is_missing[kept]) or on_other_rows(features, is_missing, kept)
    return key.name if apart or bare.sum() >= MANY_BARE * len(bare) > 0 else None
