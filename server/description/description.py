"""All hospitals' descriptions of one study, and who gave none."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from erosion.common.protocol.summary import ColumnSummary, SummaryReply
from erosion.common.study.study import Study
from erosion.common.support.plain_text import printable
from erosion.common.tasks.features import CategoryFeature
from erosion.server.description.misfits import Finding, findings

MOST_SHOWN = 300  # characters of a hospital's words


@dataclass(frozen=True, slots=True)
class Description:
    """What came back."""

    study: Study
    replies: Mapping[str, SummaryReply]  # by hospital
    declined: Mapping[str, str]  # hospital -> why

    @property
    def missing(self) -> list[str]:
        """Hospitals that neither answered nor declined."""
        return [n for n in self.study.hospitals if n not in (*self.replies, *self.declined)]

    @property
    def columns(self) -> list[str]:
        """Every column that a hospital described, in the study's order."""
        return list(dict.fromkeys(c.name for r in self.replies.values() for c in r.columns))

    def of(self, column: str) -> dict[str, ColumnSummary]:
        """One column by hospital."""
        return {
            hospital: found
            for hospital, reply in self.replies.items()
            for found in reply.columns
            if found.name == column
        }

    @property
    def findings(self) -> list[Finding]:
        """Everything that looks wrong."""
        return [finding for column in self.columns for finding in findings(self.of(column))]


def problem_with(reply: SummaryReply, study: Study, hospital: str) -> str | None:
    """Why a description cannot be used; None where it can."""
    if reply.hospital != hospital:
        return f"it answered as {printable(reply.hospital, at_most=50)!r}"
    known = {feature.name for feature in getattr(study.task, "features", ())}
    known |= {column.name for column in study.task.target_columns}
    described = Counter(column.name for column in reply.columns)
    if strange := sorted(described.keys() - known):
        return f"it described {printable(strange[0], at_most=50)!r}, which the study has not"
    groups = {
        feature.name: frozenset(feature.categories)
        for feature in getattr(study.task, "features", ())
        if isinstance(feature, CategoryFeature)
    }
    groups[study.task.target_columns[0].name] = study.task.group_names
    for column in reply.columns:
        if strange := sorted(column.shares.keys() - groups.get(column.name, frozenset())):
            what = f"{printable(strange[0], at_most=50)!r} of {column.name!r}"
            return f"it counted patients with {what}, which the study has not"
    if twice := sorted(name for name, times in described.items() if times > 1):
        return f"it described {printable(twice[0], at_most=50)!r} more than once"
    return None
