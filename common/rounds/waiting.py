"""Waiting for hospitals that are needed: absence is counted in time, not in rounds."""

from collections.abc import Sequence
from dataclasses import dataclass

from erosion.common.aggregation.cohort import HospitalName
from erosion.common.errors import RunError
from erosion.common.rounds.membership import LOOK_SECONDS, Membership, MembershipListener
from erosion.common.rounds.transport import Transport
from erosion.common.study.study import Study


class UserDeclinedError(RunError):
    """The site of the hospital whom the model is for takes no part."""


class HospitalsAwayError(RunError):
    """Hospitals without which the study cannot go on were away for too long."""


@dataclass(frozen=True, slots=True)
class Needed:
    """Who has to be there: the user, and enough of the hospitals that are asked."""

    hospitals: Sequence[HospitalName]  # the user among them
    enough: int  # of them


class Waiting:
    """Waits until those who are needed are here, and tells for whom."""

    def __init__(
        self,
        study: Study,
        membership: Membership,
        transport: Transport,
        listener: MembershipListener,
        *,
        longest_seconds: float | None,
        remedy: str = "",
    ) -> None:
        """`longest_seconds` None: for as long as it takes. `remedy`: how to go on with the run."""
        self._study, self._membership, self._transport = study, membership, transport
        self._listener, self.remedy = listener, remedy
        self._longest_seconds = longest_seconds

    def until_here(self, needed: Needed) -> None:
        """Return once they are. Raises RunError where that is hopeless, or takes too long."""
        begun = self._transport.now()
        told: tuple[HospitalName, ...] = ()
        self._membership.refresh()
        while away := self._waited_for(needed):
            waited = self._transport.now() - begun
            limit = self._longest_seconds
            if limit is not None and waited >= limit:
                raise HospitalsAwayError(
                    f"{', '.join(away)} did not come back within {limit:g} s.{self.remedy}"
                    " `--longest-wait SECONDS` says how long is too long."
                )
            if waited >= LOOK_SECONDS and away != told:  # most are back in a moment
                self._listener.waits_for(away)
                told = away
            left = LOOK_SECONDS if limit is None else min(LOOK_SECONDS, limit - waited)
            self._transport.wait_for_change(left)
            self._membership.refresh()
        if told:
            self._listener.waits_for(())

    def _waited_for(self, needed: Needed) -> tuple[HospitalName, ...]:
        """Nobody, where all who are needed are here. Raises RunError where that cannot be."""
        user, declined = self._study.user, self._membership.declined
        away = [name for name in needed.hospitals if not self._membership.is_here(name)]
        if len(needed.hospitals) - len(away) >= needed.enough:
            away = [user] if user in away else []
        if user in away and user in declined:
            raise UserDeclinedError(
                f"The user's own site {user!r} cannot take part:"
                f" {declined[user].removesuffix('.')}.{self.remedy}"
            )
        cohort = self._membership.cohort
        closed = [] if cohort is None else [name for name in away if name not in cohort]
        coming = [name for name in away if name not in declined and name not in closed]
        willing = len(needed.hospitals) - len(away) + len(coming)
        if away != [user] and willing < needed.enough:
            words = "; ".join(f"{name}: {declined[name]}" for name in away if name in declined)
            raise RunError(
                f"{needed.enough} hospitals are needed (federation.quorum), and of"
                f" {len(needed.hospitals)} only {willing} may still take part. Declined:"
                f" {words.removesuffix('.')}.{self.remedy}"
            )
        return tuple(coming)
