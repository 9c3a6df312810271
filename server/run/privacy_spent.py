"""The privacy that a run cost the other hospitals' patients, for `result.json` and the report."""

from collections.abc import Mapping, Sequence

from erosion.common.privacy.accountant import epsilon_of, strength_of
from erosion.common.rounds.records import RoundRecord
from erosion.common.settings.base import Settings
from erosion.common.study.study import Study


class PrivacySpent(Settings):
    """Differential privacy of one run, for each patient of each hospital but the user."""

    epsilon: float  # that the study promised
    delta: float
    clip_norm: float
    noise_multiplier: float  # of the clip norm
    spent: dict[str, float]  # by hospital, the most epsilon that the run can have cost


def privacy_spent(
    study: Study, records: Mapping[str, Sequence[RoundRecord]]
) -> PrivacySpent | None:
    """Of a run's records by arm; None where the study has no [privacy].

    Every round in which a hospital was asked counts: its answer may have left and been lost.
    """
    if (terms := study.privacy) is None:
        return None
    noise = terms.noise_multiplier(study.num_releases)
    spent = {}
    for name in study.hospitals:
        if name == study.user:
            continue
        asked = sum(
            record.hospitals[name].outcome != "not_asked"
            for arm, of_arm in records.items()
            if not study.arms[arm].user_only
            for record in of_arm
            if name in record.hospitals
        )
        spent[name] = epsilon_of(asked * strength_of(noise), terms.delta)
    return PrivacySpent(
        epsilon=terms.epsilon,
        delta=terms.delta,
        clip_norm=terms.clip_norm,
        noise_multiplier=noise,
        spent=spent,
    )
