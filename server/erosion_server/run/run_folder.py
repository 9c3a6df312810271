"""The layout of a run's folder: every file's place and name."""

import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from shlex import quote

import tomli_w

from erosion_common.errors import CheckpointError, DiskError, RunError, StudyError
from erosion_common.study.study import Study, load_study
from erosion_common.support.files import held, read_named, write_atomically
from erosion_common.support.text import printable

MODELS = "models"  # folder of every arm's model
USERS = "users"  # the folder of the hospitals' parts


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The paths of one run."""

    path: Path
    within: Path | None = None  # the run with every hospital as its user that this is a part of

    @property
    def run(self) -> str:
        """What the sites know the run by: no other run of theirs is called that.

        Raises CheckpointError where that is not kept as it was written.
        """
        try:
            name = read_named(self.name).decode().rstrip("\n")
        except FileNotFoundError:
            return self.path.resolve().name
        except (OSError, ValueError) as problem:
            raise _no_name(self.name, str(problem)) from None
        if not name or name != printable(name):
            raise _no_name(self.name, "it is empty, or not one line of plain text")
        return name

    @property
    def name(self) -> Path:
        """The run's name for the sites, which stays where the folder is moved or copied."""
        return self.path / "name.txt"

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

    @property
    def study(self) -> Path:
        """The study as resolved, every default written out."""
        return self.path / "study.toml"

    @property
    def journal(self) -> Path:
        """One line for every round."""
        return self.path / "rounds.jsonl"

    @property
    def trials(self) -> Path:
        """The same for trials, by which settings are chosen, and for folds."""
        return self.path / "trials.jsonl"

    @property
    def folds(self) -> Path:
        """The finished folds of a cross-fitted evaluation."""
        return self.path / "folds.json"

    def fold(self, number: int) -> "RunFolder":
        """Return the rounds of one fold, until it is finished."""
        return RunFolder(self.path / "folds" / str(number), within=self.to_resume)

    @property
    def beginning(self) -> Path:
        """What was decided before the first round; a resumed run needs it."""
        return self.path / "beginning.json"

    @property
    def result(self) -> Path:
        """The figures and the verdict."""
        return self.path / "result.json"

    @property
    def model(self) -> Path:
        """The delivered arm's final parameters; `model.json` says how to use them."""
        return self.path / "model.safetensors"

    @property
    def model_card(self) -> Path:
        """Features, scaling, classes and versions: enough to predict."""
        return self.path / "model.json"

    @property
    def contributions(self) -> Path:
        """What every hospital gave, for a spreadsheet."""
        return self.path / "contributions.csv"

    @property
    def status(self) -> Path:
        """What the coordinator is doing."""
        return self.path / "status.json"

    @property
    def report(self) -> Path:
        """The report for people."""
        return self.path / "report.html"

    @property
    def spool(self) -> Path:
        """Large messages and updates of the round under way; gone when the coordinator ends."""
        return self.path / "spool"

    @property
    def witness(self) -> Path:
        """The hash of each hospital's own log with every reply."""
        return self.path / "witness.jsonl"

    @property
    def has_begun(self) -> bool:
        """Return if the folder holds more of a run than its study."""
        files = (self.beginning, self.journal, self.trials, self.folds, self.result)
        left = (*files, self.path / "checkpoints", self.fold(0).path.parent, self.sealed)
        parts = (RunFolder(part, within=self.path) for part in (self.path / USERS).glob("*"))
        return any(path.exists() for path in left) or any(part.has_begun for part in parts)

    @property
    def has_ended(self) -> bool:
        """Whether the run came to its end; the report is the last that it writes."""
        return self.result.exists() and self.report.exists()

    def checkpoint(self, arm: str) -> Path:
        """Return the last finished round of one arm."""
        return self.path / "checkpoints" / f"{arm}.safetensors"

    def before(self, arm: str, number: int) -> Path:
        """Return the arm's state before the last round that changed anything."""
        return self.path / "checkpoints" / "before" / f"{arm}.{number}.safetensors"

    @property
    def sealed(self) -> Path:
        """The sums of sealed rounds: the one that was begun, and evidence of one that is off."""
        return self.path / "sealed"


def new_run_folder(parent: Path, study: Study) -> RunFolder:
    """Make `parent/<time>-<study>`, with the study in it. Raises RunError where that fails."""
    stamp = _stamp()
    path = parent / f"{stamp}-{study.name}"
    number = 1
    while True:
        try:
            path.mkdir(parents=True)
            break
        except FileExistsError:  # two runs within a second
            number += 1
            path = parent / f"{stamp}-{study.name}-{number}"
        except OSError as problem:
            raise DiskError(
                f"The run folder {path} cannot be made: {problem}. Give another with --runs FOLDER."
            ) from None
    folder = RunFolder(path)
    try:
        _name_it(folder, _new_name())
        write_study(folder.study, study)
    except OSError as problem:
        raise DiskError(f"The run folder {path} cannot be used: {problem}.") from None
    return folder


def open_run_folder(path: Path, study: Study) -> RunFolder:
    """Use `path`, which must hold no run, and no other study. Raises RunError."""
    folder = RunFolder(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
        with alone_in(path):
            if folder.has_begun or _is_of_another_study(folder, study):
                raise RunError(
                    f"{path} holds a run already. Give --run-folder an empty folder, or resume"
                    f" that run: `erosion server --resume {quote(str(path))}`, with the study file"
                    " before it where that was corrected since."
                )
            _name_it(folder, _new_name())
            write_study(folder.study, study)
    except OSError as problem:
        raise DiskError(f"The run folder {path} cannot be used: {problem}.") from None
    return folder


def resumed_run_folder(path: Path, study: Study | None = None) -> RunFolder:
    """Return the folder of a run that did not end. Raises RunError.

    `study`: the study to resume it with. A run that has not begun takes it instead of the stored
    one, which may have been corrected since; one that has begun must be of it.
    """
    folder = RunFolder(path)
    if not folder.study.exists():
        raise RunError(f"{path} is not a run folder: it has no {folder.study.name}.")
    if folder.has_ended:
        raise RunError(f"The run in {path} has ended; its report is {folder.report}.")
    whole = RunFolder(path.resolve().parent.parent)
    if path.resolve().parent.name == USERS and whole.study.exists():
        raise RunError(f"{path} is part of the run in {whole.path}. Give --resume that folder.")
    if study is not None:
        _take(study, folder)
    try:
        _name_it(folder, _new_name())
    except OSError as problem:
        raise DiskError(f"The run folder {path} cannot be used: {problem}.") from None
    return folder


def _take(study: Study, folder: RunFolder) -> None:
    path = folder.path
    try:
        with alone_in(path):
            if not _is_of_another_study(folder, study):
                return
            if folder.has_begun:
                raise RunError(
                    f"The run in {path} has begun with another study than the one given, and its"
                    " settings cannot change any more. To resume it, give its own study,"
                    f" {folder.study}, or `erosion server --resume {quote(str(path))}` alone. To"
                    f" run the one given, move {path} away and start it again."
                )
            before_status = {folder.name, folder.study, folder.spool, folder.witness}
            if not folder.status.exists() and set(path.iterdir()) - before_status:
                raise RunError(
                    f"{path} is not a run folder: there was no coordinator at work in it, and its"
                    f" {folder.study.name} would be written over. Give --resume a run's folder."
                )
            write_study(folder.study, study)
    except OSError as problem:
        raise DiskError(f"The run folder {path} cannot be used: {problem}.") from None


def user_folder(whole: RunFolder, study: Study) -> RunFolder:
    """Return the part of the study's user, there already or made now.

    Raises RunError, and CheckpointError where the part was run with other settings.
    """
    folder = whole.of_user(study.user)
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
        if folder.has_begun and _is_of_another_study(folder, study):
            raise CheckpointError(
                f"{folder.path} was begun with other settings than those in {whole.study}. Start"
                " the study again."
            )
        _name_it(folder, f"{whole.run}.{study.user}")
        write_study(folder.study, study)
    except OSError as problem:
        raise DiskError(f"The run folder {folder.path} cannot be used: {problem}.") from None
    return folder


def _stamp() -> str:
    return datetime.now(UTC).strftime("%Y%m%dT%H%M%S")


def _new_name() -> str:
    """Return a new name each time, for any folder: 24 characters."""
    return f"{_stamp()}-{secrets.token_hex(4)}"


def _name_it(folder: RunFolder, name: str) -> None:
    """Write the run's name, once: sites that have answered it know it by that."""
    if not folder.name.exists():
        write_atomically(folder.name, f"{name}\n")


def _no_name(path: Path, problem: str) -> CheckpointError:
    return CheckpointError(
        f"{path}, by which sites know the run, cannot be read ({problem}). Bring it back from a"
        " backup, or start the study again in another folder."
    )


def _is_of_another_study(folder: RunFolder, study: Study) -> bool:
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
                f"Another coordinator is at work in {folder}. Let it go on, or stop it first."
            ) from None
        yield


def write_study(path: Path, study: Study) -> None:
    """The study as a TOML file with every default written out."""
    write_atomically(path, tomli_w.dumps(study.model_dump(mode="json", exclude_none=True)))
