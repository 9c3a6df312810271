"""A run's initial decisions, kept so that a resumed run goes on by them."""

from pathlib import Path
from typing import Any, Final, Literal, Self

from pydantic import AliasChoices, Field

from erosion.common.errors import CheckpointError
from erosion.common.formats.json_file import read_json, write_json
from erosion.common.protocol.messages import Scaling
from erosion.common.rounds.context import Decisions
from erosion.common.rounds.data_check import DataCheck
from erosion.common.rounds.selection import SelectedSettings, chosen
from erosion.common.settings.base import Settings
from erosion.common.settings.names import Name
from erosion.common.study.study import Study
from erosion.server.run.run_folder import RunFolder

FORMAT: Final = 1  # raised when a key changes its meaning
REMEDY = "Start the study anew."


class _SelectedSettings(Settings):
    settings: dict[str, Any]
    rounds: int = Field(ge=1)
    loss: float | None = Field(validation_alias=AliasChoices("loss", "log_loss"))


class RunDecisions(Settings):
    """`beginning.json`: written when the hospitals are together and before the first round."""

    format: Literal[1] = FORMAT
    started: str  # ISO 8601, UTC
    scaling: Scaling | None  # pooled over the hospitals that were there
    choices: dict[str, _SelectedSettings]  # by arm; empty until the trials have ended

    cohort: tuple[Name, ...] | None = None  # hospitals that may take part; None: all of the study
    data_check: DataCheck = DataCheck()
    study: str | None = None  # digest; None: written by a version that did not keep it
    run: str | None = None  # what the sites know the run by; None: as above

    @classmethod
    def of(cls, study: Study, run: str, started: str, decisions: Decisions) -> Self:
        """Gather what was decided of the run of `study`, which the sites know as `run`."""
        kept = {
            arm: _SelectedSettings(settings=dict(c.settings), rounds=c.rounds, loss=c.loss)
            for arm, c in decisions.choices.items()
        }
        cohort = None if decisions.cohort is None else tuple(sorted(decisions.cohort))
        return cls(
            started=started,
            scaling=decisions.scaling,
            choices=kept,
            cohort=cohort,
            data_check=decisions.data_check,
            study=study.digest,
            run=run,
        )

    def chosen(self) -> dict[str, SelectedSettings]:
        """What every arm is run with."""
        return {
            arm: SelectedSettings(kept.settings, kept.rounds, kept.loss)
            for arm, kept in self.choices.items()
        }

    def check(self, study: Study, path: Path) -> None:
        """Raise CheckpointError where what `path` says does not fit the study."""
        if (problem := self._problem_with(study)) is not None:
            raise CheckpointError(f"{path} does not fit its study: {problem}. {REMEDY}")

    def _problem_with(self, study: Study) -> str | None:
        if self.study not in (None, study.digest):
            return "the run was begun with other settings than those in study.toml"
        if self.choices and self.choices.keys() != study.arms.keys():
            found, wanted = ", ".join(sorted(self.choices)), ", ".join(sorted(study.arms))
            return f"it is of the arms {found}, and the study has {wanted}"
        if too_long := [arm for arm, c in self.choices.items() if c.rounds > study.rounds]:
            return f"it has more rounds of {too_long[0]} than the study"
        if study.user not in (self.cohort or study.hospitals):
            return f"the hospitals that may take part lack the user, {study.user}"
        widths = {len(self.scaling.mean), len(self.scaling.deviation)} if self.scaling else set()
        if widths and widths != {study.task.input_shape[0]}:
            return f"its scaling is not of {study.task.input_shape[0]} columns"
        try:
            if self.choices:
                chosen(study, self.chosen())
        except ValueError as problem:
            return f"its settings cannot be used ({problem})"
        return None

    def write(self, path: Path) -> None:
        """Put it into the run folder."""
        write_json(path, self)


def read_run_decisions(folder: RunFolder) -> RunDecisions | None:
    """None where the run ended before its first round. Raises CheckpointError."""
    try:
        return read_json(
            folder.beginning, RunDecisions, version=FORMAT, error=CheckpointError, remedy=REMEDY
        )
    except FileNotFoundError:
        return None
