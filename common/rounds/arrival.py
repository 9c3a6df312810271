"""Waits for the hospitals that a study begins with."""

from dataclasses import dataclass

from erosion.common.errors import RunError
from erosion.common.rounds.membership import LOOK_SECONDS, Membership
from erosion.common.rounds.surroundings import Surroundings
from erosion.common.rounds.waiting import HospitalsAwayError, UserDeclinedError
from erosion.common.study.study import Study


@dataclass(frozen=True, slots=True)
class Arrival:
    """The time before the first round."""

    study: Study
    membership: Membership
    surroundings: Surroundings

    def wait(self, *, resumed: bool) -> None:
        """Until all are here, or the join deadline has passed and those that must be are.

        A hospital that declines is waited for no more. Every arm is then run with the same
        hospitals, unless the study lets others join at any time. A study that is resumed goes on
        with those of them that are there.
        """
        study, members, transport = self.study, self.membership, self.surroundings.transport
        begun = transport.now()
        told: tuple[str, ...] = ()
        deadline = study.federation.join_deadline_seconds
        longest = self.surroundings.longest_wait_seconds
        while True:
            members.refresh()
            if study.user in members.declined:
                why = members.declined[study.user].removesuffix(".")
                raise UserDeclinedError(
                    f"The user's own site {study.user!r} cannot take part: {why}."
                    f"{self._put_right(study.user)}"
                )
            waited = transport.now() - begun
            if not members.missing or (waited >= deadline and self._may_begin(resumed=resumed)):
                break
            if waited >= deadline:
                if longest is not None and waited >= longest:
                    raise HospitalsAwayError(self._why_not_begun(waited))
                if told != tuple(members.missing):
                    told = tuple(members.missing)
                    self.surroundings.listener.waits_for(told)
            next_mark = deadline if waited < deadline else longest
            left = LOOK_SECONDS if next_mark is None else next_mark - waited
            transport.wait_for_change(min(LOOK_SECONDS, left))
        if told:
            self.surroundings.listener.waits_for(())
        if len(members.members) < study.federation.quorum:  # the others have declined
            raise RunError(self._why_not_begun(transport.now() - begun))
        if study.federation.join == "at_start" and not resumed:
            members.cohort = frozenset(members.members)
        absent = {n: members.why_away(n) for n in study.hospitals if n not in members.members}
        if absent:
            self.surroundings.listener.begun_without(absent)

    def _may_begin(self, *, resumed: bool) -> bool:
        """The join deadline has passed: are those here that the study cannot begin without?"""
        study, here = self.study, self.membership.members
        enough = study.user in here and len(here) >= study.federation.quorum
        # Who is connected and says nothing would otherwise keep all others from beginning for ever.
        may_come = set(self.membership.missing) - self.membership.silent
        needs_all = (
            study.federation.start == "all"
            and bool(may_come)
            and not self.surroundings.start_with_quorum
        )
        return enough and (resumed or not needs_all)

    def _why_not_begun(self, waited: float) -> str:
        study, members = self.study, self.membership
        why = members.undecided.get(study.user) or members.away.get(study.user)
        if why is not None and study.user not in members.members:
            return (
                f"The user's own site did not take part within {waited:.0f} s:"
                f" {why.removesuffix('.')}.{self._put_right(study.user)}"
            )
        if study.user not in members.members:
            return (
                f"The user's own site {study.user!r} did not connect within {waited:.0f} s."
                f" Start it with `erosion client SITE.toml`{self._whereto()}."
                f"{self.surroundings.remedy}"
            )
        if len(members.members) < study.federation.quorum:
            ready = len(members.members)
            return (
                f"{ready} {'hospital was' if ready == 1 else 'hospitals were'} ready to take part"
                f" within {waited:.0f} s,"
                f" the study's quorum is {study.federation.quorum}."
                f" Missing: {self._missing() or 'none'};"
                f" declined: {', '.join(members.declined) or 'none'};"
                f" not approved yet: {', '.join(members.undecided) or 'none'}."
                + self._put_right(
                    *(name for name in study.hospitals if name not in members.members)
                )
            )
        return (
            f"{self._missing()} did not connect within {waited:.0f} s, and the study"
            " waits for all of its hospitals, so that every arm is compared on the same ones."
            f"{self.surroundings.remedy} With `--longest-wait SECONDS` it waits longer, with"
            " `--start-with-quorum` it begins without them."
        )

    def _put_right(self, *hospitals: str) -> str:
        """What to do where these take no part, and how to go on."""
        return (
            f" At {', '.join(hospitals)}: `erosion check SITE.toml --study STUDY.toml` says what is"
            " to be put right, and `erosion client SITE.toml` has to run until the study ends."
            f"{self.surroundings.remedy}"
        )

    def _missing(self) -> str:
        """Their names, and why they are away where that is known."""
        away = self.membership.away
        missing = self.membership.missing
        return ", ".join(f"{n} ({away[n]})" if n in away else n for n in missing)

    def _whereto(self) -> str:
        address = self.surroundings.address
        return f", where coordinator.address is {address!r}" if address else ""
