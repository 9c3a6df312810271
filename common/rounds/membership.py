"""Maps connections to the study's hospitals, and admits those that may take part."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Protocol

from erosion.common.aggregation.cohort import HospitalName
from erosion.common.learning.models import parameter_shapes, shapes_digest
from erosion.common.protocol.messages import DescribeReply, FeatureSums, ModelShape
from erosion.common.protocol.scaling import problem_with_sums
from erosion.common.protocol.summary import Summary
from erosion.common.rounds.data_check import DataCheck
from erosion.common.rounds.transport import (
    Away,
    Connection,
    Declined,
    Introduced,
    KeptOut,
    Left,
    Transport,
)
from erosion.common.study.study import Study
from erosion.common.support.text import printable
from erosion.common.tasks.inputs import TabularTask

LONGEST_VERSION = 40  # characters
LOOK_SECONDS = 1.0  # between two looks at who is there, while somebody is waited for


class MembershipListener(Protocol):
    """Is told who comes and goes."""

    def joined(
        self, hospital: str, num_samples: int, missing: Sequence[str], software: str
    ) -> None:
        """A hospital came or came back; `missing` are still waited for.

        `software`: the version that the site says it runs.
        """

    def declined(self, hospital: str, reason: str) -> None:
        """A hospital will not or cannot take part, or not yet."""

    def left(self, hospital: str) -> None:
        """A hospital lost its connection."""

    def waits_for(self, hospitals: Sequence[str]) -> None:
        """The study stands still until these are here; none: it goes on."""

    def begun_without(self, absent: Mapping[str, str]) -> None:
        """The study begins, or goes on, while these are not there, and why."""

    def checked(self, found: DataCheck) -> None:
        """The hospitals' figures of their columns were compared, before the first round."""


class NobodyListening:
    """A `MembershipListener` that has no use for it."""

    def joined(
        self, hospital: str, num_samples: int, missing: Sequence[str], software: str
    ) -> None:
        """Nothing is done."""

    def declined(self, hospital: str, reason: str) -> None:
        """Nothing is done."""

    def left(self, hospital: str) -> None:
        """Nothing is done."""

    def waits_for(self, hospitals: Sequence[str]) -> None:
        """Nothing is done."""

    def begun_without(self, absent: Mapping[str, str]) -> None:
        """Nothing is done."""

    def checked(self, found: DataCheck) -> None:
        """Nothing is done."""


@dataclass(frozen=True, slots=True)
class Member:
    """A hospital that introduced itself and takes part."""

    connection: Connection
    num_samples: int  # rows or images to train on; patients with privacy
    sums: FeatureSums | None
    software: str
    summary: Summary | None = None


class Membership:
    """Admits newcomers and notices who left; it does not wait."""

    def __init__(self, study: Study, transport: Transport, listener: MembershipListener) -> None:
        self._study, self._transport, self._listener = study, transport, listener
        self._members: dict[HospitalName, Member] = {}
        self.described: dict[HospitalName, int] = {}  # the same of all who were here
        self.declined: dict[HospitalName, str] = {}  # and why
        self.cohort: frozenset[HospitalName] | None = None  # who may join; None: every hospital
        self.undecided: dict[HospitalName, str] = {}  # declined for now, and why
        self._away: dict[HospitalName, Away] = {}  # waited for, where it is known why

    @property
    def members(self) -> Mapping[HospitalName, Member]:
        """Hospitals that are connected now."""
        return self._members

    @property
    def away(self) -> Mapping[HospitalName, str]:
        """Why hospitals that are waited for are not here, where that is known."""
        return {name: event.reason for name, event in self._away.items()}

    @property
    def silent(self) -> frozenset[HospitalName]:
        """Who is connected and has not described itself by the join deadline, or not as itself."""
        return frozenset(n for n, away in self._away.items() if away.connection is not None)

    @property
    def missing(self) -> Sequence[HospitalName]:
        """Hospitals that may still come: neither here, nor declined, nor kept out by `cohort`."""
        return [
            name
            for name in self._study.hospitals
            if name not in self._members
            and name not in self.declined
            and (self.cohort is None or name in self.cohort)
        ]

    def refresh(self) -> None:
        """Take note of who came and who left."""
        for event in self._transport.news():
            match event:
                case Introduced(connection, described):
                    self._introduced(connection, described)
                case Declined(_, hospital, reason, for_now):
                    if hospital in self._study.hospitals:
                        self._decline(hospital, reason, for_now=for_now)
                case Left(connection, expelled):
                    self._left(connection, expelled)
                case Away(hospital, reason):
                    self._away[hospital] = replace(event, reason=printable(reason))
                    self._listener.declined(hospital, printable(reason))
                case KeptOut():
                    self._kept_out(event)

    def is_here(self, hospital: HospitalName) -> bool:
        """It is a member, and has shown that it lives."""
        member = self._members.get(hospital)
        return member is not None and self._transport.hears(member.connection)

    def why_away(self, hospital: HospitalName) -> str:
        """Completes "the hospital ..."."""
        if hospital in self.declined:
            return f"declined: {self.declined[hospital]}"
        if hospital in self.undecided:
            return "has not approved the study yet"
        if self.cohort is not None and hospital not in self.cohort:
            return "was not there when the study began"
        return self.away.get(hospital, "was not connected")

    def _introduced(self, connection: Connection, described: DescribeReply) -> None:
        name = described.hospital
        if (problem := self._problem_with(described)) is not None:
            # A site's own words may be megabytes.
            self._listener.declined(printable(name), printable(problem))
            self._transport.turn_away(connection, printable(problem))
            return
        self.declined.pop(name, None)
        self.undecided.pop(name, None)
        self._away.pop(name, None)
        software = printable(described.software, at_most=LONGEST_VERSION)
        self.described[name] = described.num_samples
        self._members[name] = Member(
            connection, described.num_samples, described.sums, software, described.summary
        )
        self._listener.joined(name, described.num_samples, self.missing, software)

    def _problem_with(self, described: DescribeReply) -> str | None:
        name = described.hospital
        if name not in self._study.hospitals:
            return f"the study has no hospital {name!r}; check `name` in the site file"
        if name in self._members:
            return f"another site is already connected as {name!r}; two sites cannot share a name"
        if self.cohort is not None and name not in self.cohort:
            return "the study has begun and is closed to newcomers (federation.join)"
        if described.num_samples < 1:
            return f"it reports {described.num_samples} training samples"
        if described.model is not None and (wrong := self._problem_with_model(described.model)):
            return wrong
        if self._study.sends_sums(name) != (described.sums is not None):
            return "its answer does not fit the study's scaling"
        if described.sums is not None and isinstance(self._study.task, TabularTask):
            return problem_with_sums(described.sums, self._study.task)
        return None

    def _problem_with_model(self, found: ModelShape) -> str | None:
        task = self._study.task
        shapes = parameter_shapes(self._study.model, tuple(task.input_shape), task.num_outputs)
        if found.digest == shapes_digest(shapes):
            return None
        dim = sum(map(prod, shapes.values()))
        if found.num_parameters != dim:
            what = f"has {found.num_parameters:,} parameters that travel, the coordinator's {dim:,}"
        else:
            what = "has parameters of other names or shapes than the coordinator's"
        return (
            f"its model {what}; the same code and file gave another model there: compare the"
            " installed versions of torch and of what the model's package imports"
        )

    def _left(self, connection: Connection, expelled: str) -> None:
        for name, member in list(self._members.items()):
            if member.connection == connection:
                del self._members[name]
                if expelled:
                    self._decline(name, expelled)
                elif name not in self._away:  # else it was told already
                    self._listener.left(name)
        for name in [n for n, away in self._away.items() if away.connection == connection]:
            del self._away[name]
            self._listener.left(name)

    def _kept_out(self, event: KeptOut) -> None:
        hospital, reason = event.hospital, printable(event.reason)
        if hospital in self._members:  # whose own site is here, and unharmed
            self._listener.declined(f"another connection as {event.who}", reason)
        elif hospital not in self.declined and not _is_same(
            reason, self.away.get(hospital or "", "")
        ):
            if hospital in self._study.hospitals:
                self._away[hospital] = Away(hospital, reason)
            self._listener.declined(event.who, reason)

    def _decline(self, hospital: HospitalName, reason: str, *, for_now: bool = False) -> None:
        self._away.pop(hospital, None)
        (self.undecided if for_now else self.declined)[hospital] = printable(reason)
        self._listener.declined(hospital, printable(reason))


def _is_same(reason: str, other: str) -> bool:
    """Whether two say the same, whatever remedy they name after it."""
    return reason.partition(";")[0] == other.partition(";")[0]
