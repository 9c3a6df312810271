"""The layout of a run's folder: every file's place and name."""

import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

import tomli_w

from erosion_common.errors import CheckpointError, DiskError, RunError, StudyError
from erosion_common.support.files import FileIn, held, read_named, write_atomically
from erosion_common.support.text import printable

if TYPE_CHECKING:  # a log is audited without torch
    from erosion_common.study.study import Study

MODELS = "models"  # folder of every arm's model
USERS = "users"  # the folder of the hospitals' parts


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The paths of one run."""

    path: Path
    within: Path | None = None  # the run with every hospital as its user that this is a part of

    study = FileIn("study.toml")  # as resolved, every default written out
    name = FileIn("name.txt")  # the run's, which stays where the folder is moved or copied
    beginning = FileIn("beginning.json")  # what was decided before the first round
    journal = FileIn("rounds.jsonl")  # one line for every round
    folds = FileIn("folds")  # of a cross-fitted evaluation, or trials by which settings are chosen
    sealed = FileIn("sealed")  # sums of sealed rounds: that begun, and evidence of one that is off
    spool = FileIn("spool")  # large messages and updates of the round under way
    status = FileIn("status.json")  # what the coordinator is doing
    witness = FileIn("witness.jsonl")  # the hash of each hospital's own log with every reply
    result = FileIn("result.json")  # the figures and the verdict
    model = FileIn("model.safetensors")  # the delivered arm's final parameters
    finish = FileIn("finish.safetensors")  # its last layers, where the arm has a finish
    model_card = FileIn("model.json")  # features, scaling, classes and versions: enough to predict
    contributions = FileIn("contributions.csv")  # what every hospital gave
    report = FileIn("report.html")  # for people; written last

    @property
    def run(self) -> str:
        """Return the name by which sites know the run. Raises CheckpointError."""
        try:
            name = read_named(self.name).decode().rstrip("\n")
            if not name or name != printable(name):
                raise ValueError("it is empty, or not one line of plain text")
        except FileNotFoundError:
            return self.path.resolve().name
        except (OSError, ValueError) as problem:
            raise CheckpointError(
                f"{self.name}, by which sites know the run, cannot be read ({problem})",
                remedy="Bring it back from a backup, or start the study again in another folder.",
            ) from None
        return name

    @property
    def to_resume(self) -> Path:
        """The folder that `erosion server --resume` takes."""
        return self.within or self.path

    def of_user(self, user: str) -> "RunFolder":
        """Return one hospital's part of a run with every hospital as its user."""
        return RunFolder(self.path / USERS / user, within=self.path)

    def of_arm(self, arm: str) -> "RunFolder":
        """Return where an arm's own `model.safetensors` and `model.json` are."""
        return RunFolder(self.path / MODELS / arm, within=self.within)

    def fold(self, number: int) -> "RunFolder":
        """Return the folder of a fold or trial under way."""
        return RunFolder(self.folds / str(number), within=self.to_resume)

    def finished_fold(self, number: int) -> Path:
        """Return the journal of a finished one."""
        return self.folds / f"{number}.jsonl"

    def checkpoint(self, arm: str) -> Path:
        """Return the last finished round of one arm."""
        return self.path / "checkpoints" / f"{arm}.safetensors"

    def before(self, arm: str, number: int) -> Path:
        """Return the arm's state after this round, until nothing can go back to it."""
        return self.path / "checkpoints" / f"{arm}.{number}.safetensors"

    @property
    def has_begun(self) -> bool:
        """Return if the folder holds more of a run than its study."""
        files = (self.beginning, self.journal, self.folds, self.result, self.sealed)
        parts = (RunFolder(part, within=self.path) for part in (self.path / USERS).glob("*"))
        return any(path.exists() for path in (*files, self.path / "checkpoints")) or any(
            part.has_begun for part in parts
        )

    @property
    def has_ended(self) -> bool:
        """Whether the run came to its end."""
        return self.result.exists() and self.report.exists()

    @property
    def resume_command(self) -> str:
        """What a person types to continue the run."""
        return f"`erosion server --resume {quote(str(self.to_resume))}`"


def new_run_folder(parent: Path, study: "Study") -> RunFolder:
    """Make `parent/<time>-<study>`, with the study in it. Raises RunError where that fails."""
    path = first = parent / f"{_stamp()}-{study.name}"
    with _usable(parent, "Give another folder with --runs FOLDER."):
        for number in count(2):  # two within a second
            try:
                path.mkdir(parents=True)
                break
            except FileExistsError:
                path = first.with_name(f"{first.name}-{number}")
    with _usable(path):
        return _begun(RunFolder(path), study)


def open_run_folder(path: Path, study: "Study") -> RunFolder:
    """Use `path`, which must hold no run, and no other study. Raises RunError."""
    folder = RunFolder(path)
    with _usable(path):
        path.mkdir(parents=True, exist_ok=True)
        with alone_in(path):
            if folder.has_begun or _is_of_another_study(folder, study):
                raise RunError(
                    "it holds a run already",
                    where=str(path),
                    remedy=f"Give --run-folder an empty folder, or resume: {folder.resume_command},"
                    " with the study file before it where that was corrected since.",
                )
            return _begun(folder, study)


def existing_run_folder(path: Path) -> RunFolder:
    """Return the folder of a run that was begun. Raises CheckpointError."""
    folder = RunFolder(path)
    if not folder.study.exists():
        raise CheckpointError(
            f"{path} is not a run folder: it has no {folder.study.name}",
            remedy="Give the folder of a run (runs/TIME-STUDY).",
        )
    return folder


def check_has_one_user(folder: RunFolder) -> None:
    """Raise CheckpointError if the folder holds a run for each hospital."""
    if (folder.path / USERS).is_dir():
        raise CheckpointError(
            f"{folder.path} holds a run for each hospital",
            remedy=f"Give one of them: {folder.path / USERS}/HOSPITAL.",
        )


def stored_study(folder: RunFolder) -> "Study":
    """Return the study in the folder. Raises StudyError, and CheckpointError if the run has begun.

    A run that has not begun takes a study that is corrected in its folder; one that has does not.
    """
    from erosion_common.study.study import load_study

    try:
        return load_study(folder.study)
    except StudyError as problem:
        if not folder.has_begun:
            raise
        what = problem.problem.what.removesuffix(".")
        raise CheckpointError(
            f"{what}\nIt is the run's own study, which cannot change",
            remedy="Bring it back from a backup, or use the version of Erosion that wrote it.",
        ) from None


def resumed_run_folder(path: Path, study: "Study | None" = None) -> RunFolder:
    """Return the folder of a run that did not end. Raises RunError, CheckpointError.

    `study`: the study to resume it with. A run that has not begun takes it instead of the stored
    one, which may have been corrected since; one that has begun must be of it.
    """
    folder = existing_run_folder(path)
    if folder.has_ended:
        raise RunError(f"The run in {path} has ended; its report is {folder.report}.")
    whole = RunFolder(path.resolve().parent.parent)
    if path.resolve().parent.name == USERS and whole.study.exists():
        raise RunError(
            f"{path} is part of the run in {whole.path}", remedy="Give --resume that folder."
        )
    with _usable(path):
        if study is not None:
            _take(study, folder)
        _name_it(folder)
    return folder


def _take(study: "Study", folder: RunFolder) -> None:
    path = folder.path
    with alone_in(path):
        if not _is_of_another_study(folder, study):
            return
        if folder.has_begun:
            raise RunError(
                "the run has begun with another study than the one given, and its settings cannot"
                " change any more",
                where=str(path),
                remedy=f"To resume it, give its own study, {folder.study}, or"
                f" {folder.resume_command} alone. To run the one given, move {path} away and start"
                " it again.",
            )
        before_status = {folder.name, folder.study, folder.spool, folder.witness}
        if not folder.status.exists() and set(path.iterdir()) - before_status:
            raise RunError(
                f"{path} is not a run folder: there was no coordinator at work in it, and its"
                f" {folder.study.name} would be written over",
                remedy="Give --resume a run's folder.",
            )
        write_study(folder.study, study)


def user_folder(whole: RunFolder, study: "Study") -> RunFolder:
    """Return the part of the study's user, made if need be. Raises RunError, CheckpointError."""
    folder = whole.of_user(study.user)
    with _usable(folder.path):
        folder.path.mkdir(parents=True, exist_ok=True)
        if folder.has_begun and _is_of_another_study(folder, study):
            raise CheckpointError(
                f"it was begun with other settings than those in {whole.study}",
                where=str(folder.path),
                remedy="Start the study again.",
            )
        return _begun(folder, study, f"{whole.run}.{study.user}")


@contextmanager
def _usable(path: Path, remedy: str = "") -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        what = f"the run folder cannot be used ({problem.strerror or problem})"
        raise DiskError(what, where=str(path), remedy=remedy) from None


def _begun(folder: RunFolder, study: "Study", name: str = "") -> RunFolder:
    _name_it(folder, name)
    write_study(folder.study, study)
    return folder


def _name_it(folder: RunFolder, name: str = "") -> None:
    """Write the run's name, once, of 24 characters: sites that have answered it know it by that."""
    if not folder.name.exists():
        write_atomically(folder.name, f"{name or f'{_stamp()}-{secrets.token_hex(4)}'}\n")


def _stamp() -> str:
    return datetime.now(UTC).strftime("%Y%m%dT%H%M%S")


def _is_of_another_study(folder: RunFolder, study: "Study") -> bool:
    from erosion_common.study.study import load_study

    if not folder.study.exists():
        return False
    try:
        return load_study(folder.study).digest != study.digest
    except StudyError:  # edited, or of another version
        return True


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Two coordinators in one folder would write over each other's files. Raises RunError."""
    with ExitStack() as stack:
        try:
            stack.enter_context(held(folder))
        except BlockingIOError:
            raise RunError(
                f"Another coordinator is at work in {folder}",
                remedy="Let it end, or stop it first.",
            ) from None
        yield


def write_study(path: Path, study: "Study") -> None:
    """The study as a TOML file with every default written out."""
    write_atomically(path, tomli_w.dumps(study.model_dump(mode="json", exclude_none=True)))
