"""A folder of study files, run one after another over one link: `erosion server --queue FOLDER`.

The sites stay connected. A file that was run goes to `done/`, one that cannot be run to `failed/`,
with the reason in a file. A file that was changed while it ran is run again. A study with
hospitals away gives way to the next and is tried again after it; one that was cut off is resumed.
"""

import json
import logging
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import chain, count
from pathlib import Path

from erosion_common.errors import DiskError, ErosionError, RunError
from erosion_common.rounds.presence import HospitalsAwayError
from erosion_common.settings.packages import blamed
from erosion_common.study.study import Study, load_study
from erosion_common.support.files import read_named, version_of, write_atomically
from erosion_server.run.run_folder import RunFolder, new_run_folder, resumed_run_folder
from erosion_server.run.status import DONE, FAILED

logger = logging.getLogger("erosion.queue")

LOOK_SECONDS = 1.0
RUNS = ".runs.json"  # by a waiting file's name: the run that it has begun, and the file's version


class StudyQueue:
    """Use `serve`. Nothing is remembered but by the files."""

    def __init__(
        self,
        folder: Path,
        runs: Path,
        run: Callable[[Study, RunFolder], object],
        *,
        idle: Callable[[], None] = lambda: None,
        withdrawn: Callable[[RunFolder], None] = lambda _folder: None,
    ) -> None:
        """`idle` is called while no study is to be run; `withdrawn`, where one was taken away."""
        self._folder, self._runs, self._run = folder, runs, run
        self._idle, self._withdrawn = idle, withdrawn
        self._turns: Counter[str] = Counter()  # that a waiting file has had
        self._gave_way: dict[str, RunFolder] = {}  # by the file's name
        self._seen: dict[Path, tuple[int, ...]] = {}  # to let a file be written to its end

    def serve(self, *, until_empty: bool) -> None:
        """Run the files that are there and those that come; `until_empty`: end after the last."""
        self._note_runs(self._known_runs())
        while True:
            for name in self._gave_way.keys() - {path.name for path in self._waiting()}:
                del self._turns[name]
                self._withdrawn(self._gave_way.pop(name))
            if (path := self._next()) is not None:
                self._take(path)
            elif until_empty and not self._waiting():
                return
            else:
                self._idle()
                time.sleep(LOOK_SECONDS)

    def _waiting(self) -> list[Path]:
        return sorted(self._folder.glob("*.toml"))

    def _next(self) -> Path | None:
        """Return the next file, once nobody is writing it any more."""
        whole = []
        for path in self._waiting():
            version = version_of(path)
            if self._seen.get(path) == version:
                whole.append(path)
            self._seen[path] = version
        return min(whole, key=lambda path: (self._turns[path.name], path.name), default=None)

    def _take(self, path: Path) -> None:
        content = _content(path)
        try:
            study = load_study(path, content)
            folder = self._run_folder(path, study)
            if not folder.has_ended:  # else it was cut off before its file was put away
                self._run(study, folder)
        except HospitalsAwayError as problem:
            self._turns[path.name] += 1
            self._gave_way[path.name] = folder
            logger.warning("%s waits for its next turn: %s", path.name, problem)
        except (OSError, DiskError):  # no study's fault: the next one would end so, too
            raise
        except ErosionError as problem:
            self._leave_out(path, content, str(problem))
        except Exception as problem:  # noqa: BLE001 - it must not keep the others waiting
            self._leave_out(path, content, text_of_fault(path.name, problem))
        else:
            logger.info("%s has ended; its report is %s", path.name, folder.report)
            self._put_away(path, content, self._free_place(path, DONE))

    def _run_folder(self, path: Path, study: Study) -> RunFolder:
        """Of the run that was cut off, if there is one of this very study."""
        runs = self._known_runs()
        if path.name in runs:
            run, version = runs[path.name]
            try:
                folder = RunFolder(Path(run))
                if not folder.has_ended:
                    folder = resumed_run_folder(folder.path)
                elif version != list(version_of(path)):
                    raise RunError(f"the run in {run} was of an earlier file of that name.")
                if load_study(folder.study).digest == study.digest:
                    return folder
                raise RunError(f"it is another study than that of the run in {run}, which stays.")
            except ErosionError as problem:
                logger.warning("%s starts again: %s", path.name, problem)
        folder = new_run_folder(self._runs, study)
        run = str(folder.path.resolve())
        self._note_runs({**runs, path.name: (run, list(version_of(path)))})
        return folder

    def _leave_out(self, path: Path, content: bytes | None, why: str) -> None:
        logger.error("%s is left out: %s", path.name, why)
        target = self._free_place(path, FAILED)
        write_atomically(target.with_suffix(".txt"), f"{why}\n")
        self._put_away(path, content, target)

    def _free_place(self, path: Path, where: str) -> Path:
        """By the file's name, or with a number where a study or a reason there has that name."""
        names = chain([path.name], (f"{path.stem}-{number}{path.suffix}" for number in count(2)))
        places = (self._folder / where / name for name in names)
        return next(p for p in places if not (p.exists() or p.with_suffix(".txt").exists()))

    def _put_away(self, path: Path, content: bytes | None, target: Path) -> None:
        """`content`: what the file held when its turn began."""
        target.parent.mkdir(exist_ok=True)
        if _content(path) == content:
            with suppress(FileNotFoundError):  # somebody took it away meanwhile
                path.replace(target)
        elif path.exists():
            logger.info("%s was changed meanwhile; it is run again", path.name)
            if content is not None:
                write_atomically(target, content)
        self._turns.pop(path.name, None)
        self._gave_way.pop(path.name, None)
        self._note_runs({k: v for k, v in self._known_runs().items() if k != path.name})

    def _known_runs(self) -> dict[str, tuple[str, list[int]]]:
        try:
            known = json.loads(read_named(self._folder / RUNS).decode())
            waiting = {path.name for path in self._waiting()}
            return {k: (str(run), list(v)) for k, (run, v) in known.items() if k in waiting}
        except (OSError, ValueError, TypeError, AttributeError, RecursionError):
            return {}

    def _note_runs(self, runs: dict[str, tuple[str, list[int]]]) -> None:
        write_atomically(self._folder / RUNS, json.dumps(runs, indent=2) + "\n")


def text_of_fault(what: str, problem: Exception) -> str:
    """Log a fault of ours, or of a package's code, for -v, and return it in words."""
    logging.getLogger("erosion").info("%s", what, exc_info=problem)
    whose = blamed(problem) or "a fault of this program"
    return f"{whose} ({type(problem).__name__}: {problem}); -v shows more"


def _content(path: Path) -> bytes | None:
    try:
        return read_named(path)
    except OSError:
        return None
