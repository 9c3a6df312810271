"""Who is here: admits hospitals, waits for those that are needed, backs off from late ones."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import prod
from statistics import median

from erosion_common.aggregation.cohort import HospitalName
from erosion_common.errors import RunError
from erosion_common.learning.models import parameter_shapes, shapes_digest
from erosion_common.protocol.messages import DescribeReply, FeatureSums, ModelShape, Summary
from erosion_common.protocol.scaling import problem_with_sums
from erosion_common.rounds.channel import (
    Away,
    Channel,
    Connection,
    Declined,
    Denied,
    Introduced,
    Left,
)
from erosion_common.rounds.events import (
    Emit,
    HospitalDeclined,
    HospitalJoined,
    HospitalLeft,
    StudyBegunWithout,
    WaitsFor,
)
from erosion_common.rounds.records import Absence
from erosion_common.study.study import Study
from erosion_common.support.text import printable
from erosion_common.tasks.inputs import TabularTask

LONGEST_VERSION = 40  # characters
LOOK_SECONDS = 1.0  # between two looks while somebody is waited for


class UserDeclinedError(RunError):
    """The site of the user, the hospital that gets the model, takes no part."""


class HospitalsAwayError(RunError):
    """Hospitals without which the study cannot continue were away for too long."""


@dataclass(frozen=True, slots=True)
class Member:
    """A hospital that is connected and takes part."""

    connection: Connection
    num_samples: int  # rows or images to train on; patients with privacy
    sums: FeatureSums | None
    software: str
    summary: Summary | None = None  # of its columns


class Presence:
    """Knows which hospitals of a study are here, and waits for those that are needed."""

    def __init__(
        self,
        study: Study,
        channel: Channel,
        emit: Emit,
        *,
        longest_wait_seconds: float | None = None,
        start_with_quorum: bool = False,
        address: str = "",
        remedy: str = "",
    ) -> None:
        """Starts with nobody.

        `longest_wait_seconds`: for hospitals that are needed; None: unlimited. `address`, `remedy`:
        where sites find the coordinator and how to resume the run, for messages.
        """
        self._study, self._channel, self._emit = study, channel, emit
        self._longest, self._start_with_quorum = longest_wait_seconds, start_with_quorum
        self._address, self._remedy = address, remedy
        self.members: dict[HospitalName, Member] = {}  # connected now
        self.described: dict[HospitalName, int] = {}  # training patients of all who ever joined
        self.declined: dict[HospitalName, str] = {}  # for good, and why
        self.undecided: dict[HospitalName, str] = {}  # for now, and why
        self.cohort: frozenset[HospitalName] | None = None  # may join; None: all may
        self._away: dict[HospitalName, Away] = {}  # waited for, where the reason is known
        self._announced: tuple[HospitalName, ...] = ()  # as waited for
        self._waits_since = datetime.now(UTC)

    # -- Who is here ---------------------------------------------------------------------------

    def refresh(self) -> None:
        """Takes in what the channel noticed since the last call."""
        for event in self._channel.news():
            match event:
                case Introduced(connection, described):
                    self._admit(connection, described)
                case Declined(_, hospital, reason, for_now):
                    if hospital in self._study.everyone:
                        self._decline(hospital, reason, for_now=for_now)
                case Left(connection, expelled):
                    self._left(connection, expelled)
                case Away(hospital, reason):
                    self._away[hospital] = replace(event, reason=printable(reason))
                    self._emit(HospitalDeclined(hospital, printable(reason)))
                case Denied():
                    self._denied(event)

    @property
    def missing(self) -> list[HospitalName]:
        """Hospitals that may still join."""
        return [
            name
            for name in self._study.hospitals
            if name not in self.members and name not in self.declined and self._may_join(name)
        ]

    def _may_join(self, hospital: HospitalName) -> bool:
        return self.cohort is None or hospital in self.cohort

    @property
    def _num_ready(self) -> int:
        """Members that train."""
        return len(self.members.keys() & {*self._study.hospitals})

    def is_here(self, hospital: HospitalName) -> bool:
        """Returns True for a member that gives signs of life."""
        member = self.members.get(hospital)
        return member is not None and self._channel.hears(member.connection)

    def why_away(self, hospital: HospitalName) -> str:
        """Completes "the hospital ..."."""
        if hospital in self.declined:
            return f"declined: {self.declined[hospital]}"
        if hospital in self.undecided:
            return "has not approved the study yet"
        if hospital in self._study.hospitals and not self._may_join(hospital):
            return "was not there when the study began"
        away = self._away.get(hospital)
        return "was not connected" if away is None else away.reason

    def _admit(self, connection: Connection, described: DescribeReply) -> None:
        name = described.hospital
        if (problem := self._problem_with(described)) is not None:
            self._emit(HospitalDeclined(printable(name), printable(problem)))
            self._channel.turn_away(connection, printable(problem))
            return
        for reasons in (self.declined, self.undecided, self._away):
            reasons.pop(name, None)
        software = printable(described.software, at_most=LONGEST_VERSION)
        self.described[name] = described.num_samples
        self.members[name] = Member(
            connection, described.num_samples, described.sums, software, described.summary
        )
        self._emit(HospitalJoined(name, described.num_samples, tuple(self.missing), software))

    def _problem_with(self, described: DescribeReply) -> str | None:
        name, task = described.hospital, self._study.task
        if name not in self._study.everyone:
            return f"the study has no hospital {name!r}; check `name` in the site file"
        if name in self.members:
            return f"another site is already connected as {name!r}; two sites cannot share a name"
        if name not in self._study.only_measuring and not self._may_join(name):
            return "the study has begun and is closed to newcomers (federation.join)"
        if described.num_samples < 1:
            return f"it reports {described.num_samples} training samples"
        if described.model is not None and (wrong := self._problem_with_model(described.model)):
            return wrong
        if self._study.sends_sums(name) != (described.sums is not None):
            return "its answer does not fit the study's scaling"
        if described.sums is not None and isinstance(task, TabularTask):
            return problem_with_sums(described.sums, task)
        return None

    def _problem_with_model(self, found: ModelShape) -> str | None:
        task = self._study.task
        shapes = parameter_shapes(self._study.model, tuple(task.input_shape), task.num_outputs)
        if found.digest == shapes_digest(shapes):
            return None
        return (
            f"its model has {found.num_parameters:,} parameters that travel, the coordinator's"
            f" {sum(map(prod, shapes.values())):,}, and the names or shapes differ; the same code"
            " and file gave another model there: compare the installed versions of torch and of"
            " what the model's package imports"
        )

    def _left(self, connection: Connection, expelled: str) -> None:
        for name in [n for n, m in self.members.items() if m.connection == connection]:
            del self.members[name]
            if expelled:
                self._decline(name, expelled)
            elif name not in self._away:
                self._emit(HospitalLeft(name))
        for name in [n for n, away in self._away.items() if away.connection == connection]:
            del self._away[name]
            self._emit(HospitalLeft(name))

    def _denied(self, event: Denied) -> None:
        hospital, reason = event.hospital, printable(event.reason)
        known = self._away.get(hospital or "")
        if hospital in self.members:  # its own site is connected and not affected
            self._emit(HospitalDeclined(f"another connection as {event.who}", reason))
        elif hospital not in self.declined and not (
            known is not None and known.reason.partition(";")[0] == reason.partition(";")[0]
        ):
            if hospital in self._study.everyone:
                self._away[hospital] = Away(hospital, reason)
            self._emit(HospitalDeclined(event.who, reason))

    def _decline(self, hospital: HospitalName, reason: str, *, for_now: bool = False) -> None:
        self._away.pop(hospital, None)
        (self.undecided if for_now else self.declined)[hospital] = printable(reason)
        self._emit(HospitalDeclined(hospital, printable(reason)))

    # -- Waiting -------------------------------------------------------------------------------

    def wait_for_start(self, *, resumed: bool) -> None:
        """Waits for all, or after the deadline for those required. Raises RunError."""
        study, begun = self._study, self._channel.now()
        deadline = study.federation.join_deadline_seconds

        def missing(waited: float) -> list[HospitalName]:
            if study.user in self.declined:
                raise self._user_declined(self._check_site(study.user))
            is_late = waited >= deadline and self._may_start(resumed=resumed)
            return [] if is_late else self.missing

        self._wait(missing, deadline, lambda waited, _: self._not_started(waited))
        if self._num_ready < study.federation.quorum:  # the others have declined
            raise self._not_started(self._channel.now() - begun, RunError)
        if study.federation.join == "at_start" and not resumed:
            self.cohort = frozenset(self.members).intersection(study.hospitals)
        if absent := {n: self.why_away(n) for n in study.hospitals if n not in self.members}:
            self._emit(StudyBegunWithout(absent))

    def wait_for(self, hospitals: Sequence[HospitalName], enough: int) -> None:
        """Waits for the user and `enough` of `hospitals`. Raises RunError if they cannot come."""

        def too_long(_waited: float, away: Sequence[HospitalName]) -> RunError:
            what = f"{', '.join(away)} did not come back within {self._longest:g} s"
            limit = "`--longest-wait SECONDS` says how long is too long."
            return HospitalsAwayError(what, remedy=f"{self._remedy} {limit}".lstrip())

        shortest = LOOK_SECONDS if self._longest is None else min(LOOK_SECONDS, self._longest)
        self._wait(lambda _: self._still_needed(hospitals, enough), shortest, too_long)

    def _wait(
        self,
        missing: Callable[[float], Sequence[HospitalName]],
        patience: float,
        too_long: Callable[[float, Sequence[HospitalName]], RunError],
    ) -> None:
        """Waits until nobody is `missing`; announces who is after `patience` seconds."""
        begun = self._channel.now()
        self.refresh()
        while away := tuple(missing(waited := self._channel.now() - begun)):
            if waited >= patience:
                if self._longest is not None and waited >= self._longest:
                    raise too_long(waited, away)
                self._announce(away)
            mark = patience if waited < patience else self._longest
            left = LOOK_SECONDS if mark is None else mark - waited
            self._channel.wait_for_change(min(LOOK_SECONDS, left))
            self.refresh()
        if self._announced:
            self._announce(())

    def _announce(self, hospitals: tuple[HospitalName, ...]) -> None:
        if hospitals != self._announced:
            if not self._announced or not hospitals:
                self._waits_since = datetime.now(UTC)
            self._announced = hospitals
            self._emit(WaitsFor(hospitals, self._waits_since))

    def _still_needed(self, hospitals: Sequence[HospitalName], enough: int) -> list[HospitalName]:
        user, declined = self._study.user, self.declined
        away = [name for name in hospitals if not self.is_here(name)]
        if len(hospitals) - len(away) >= enough:
            away = [user] if user in away else []
        if user in away and user in declined:
            raise self._user_declined()
        coming = [name for name in away if name not in declined and self._may_join(name)]
        willing = len(hospitals) - len(away) + len(coming)
        if away != [user] and willing < enough:
            words = "; ".join(f"{name}: {declined[name]}" for name in away if name in declined)
            raise RunError(
                f"{enough} hospitals are needed (federation.quorum), and of {len(hospitals)} only"
                f" {willing} may still take part. Declined: {words}",
                remedy=self._remedy,
            )
        return coming

    def _may_start(self, *, resumed: bool) -> bool:
        federation = self._study.federation
        if self._study.user not in self.members or self._num_ready < federation.quorum:
            return False
        # A site that is connected and says nothing must not keep the others from starting for ever.
        silent = {name for name, away in self._away.items() if away.connection is not None}
        can_do_without = federation.start != "all" or self._start_with_quorum
        return resumed or can_do_without or silent.issuperset(self.missing)

    def _user_declined(self, *first: str) -> UserDeclinedError:
        user = self._study.user
        return UserDeclinedError(
            f"The user's own site {user!r} cannot take part: {self.declined[user]}",
            remedy=self._with_remedy(*first),
        )

    def _not_started(self, waited: float, kind: type[RunError] = HospitalsAwayError) -> RunError:
        study, user, ready = self._study, self._study.user, self._num_ready
        away = {name: event.reason for name, event in self._away.items()}
        missing = ", ".join(f"{n} ({away[n]})" if n in away else n for n in self.missing)
        if user not in self.members:
            why = self.undecided.get(user) or away.get(user) or "it did not connect"
            where = f", where coordinator.address is {self._address!r}" if self._address else ""
            what = f"The user's own site {user!r} did not take part within {waited:.0f} s: {why}"
            return kind(what, remedy=self._with_remedy(self._check_site(user, where=where)))
        if ready < study.federation.quorum:
            absent = [name for name in study.hospitals if name not in self.members]
            return kind(
                f"Ready to take part within {waited:.0f} s: {ready} of the study's quorum of"
                f" {study.federation.quorum}. Missing: {missing or 'none'}; declined:"
                f" {', '.join(self.declined) or 'none'}; not approved yet:"
                f" {', '.join(self.undecided) or 'none'}",
                remedy=self._with_remedy(self._check_site(*absent)),
            )
        return kind(
            f"{missing} did not connect within {waited:.0f} s, and the study waits for all of its"
            " hospitals, so that every arm is compared on the same ones",
            remedy=self._with_remedy(
                "With `--longest-wait SECONDS` it waits longer, with `--start-with-quorum` it"
                " begins without them."
            ),
        )

    def _check_site(self, *hospitals: str, where: str = "") -> str:
        return (
            f"At {', '.join(hospitals)}: `erosion check SITE.toml --study STUDY.toml` says what is"
            f" to be put right, and `erosion client SITE.toml`{where} has to run until the study"
            " ends."
        )

    def _with_remedy(self, *first: str) -> str:
        return " ".join(filter(None, (*first, self._remedy)))


class BackOff:
    """Exponential back-off for hospitals that hold rounds up; one for each arm.

    After three delays in a row a hospital is left out of one round, then of two, four and so on.
    What it did is judged when a round ends, because it may answer in one exchange and not in the
    next.
    """

    TOLERATED = 3

    def __init__(self) -> None:
        # Delays in a row, the last round, and whether it answered then, too slowly.
        self._delayed: dict[HospitalName, tuple[int, int, bool]] = {}

    def paused(self, number: int) -> dict[HospitalName, Absence]:
        """Returns who sits out round `number`, and why."""
        paused = {}
        for name, (times, last, was_slow) in self._delayed.items():
            again = last + 1 + 2 ** max(0, times - self.TOLERATED)
            if times < self.TOLERATED or number >= again:
                continue
            how = "much slower than the others" if was_slow else "late"
            reason = f"was {how} {times} times in a row, and is asked again in round {again}"
            paused[name] = Absence(reason, left_out="slow" if was_slow else "late")
        return paused

    def round_ended(
        self,
        number: int,
        late: Collection[HospitalName],
        heard: Collection[HospitalName],
        slow: Collection[HospitalName] = (),
    ) -> None:
        """Notes who was late or slow in any exchange, and who answered in one."""
        for name in set(heard) - {*late, *slow}:
            self._delayed.pop(name, None)
        for name in {*late, *slow}:
            times, *_ = self._delayed.get(name, (0,))
            self._delayed[name] = times + 1, number, name not in late


def too_slow(seconds: Mapping[HospitalName, float], deadline: float) -> set[HospitalName]:
    """Returns who held an exchange up although it answered in time.

    `seconds`: from request to reply. That is half of the deadline and ten times the others' median,
    so that no single hospital makes another look slow.
    """
    slow = set()
    for name, own in seconds.items():
        others = [value for other, value in seconds.items() if other != name]
        if others and own >= max(0.5 * deadline, 10 * median(others)):
            slow.add(name)
    return slow
