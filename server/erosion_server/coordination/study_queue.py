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

from erosion_common.errors import DiskError, ErosionError
from erosion_common.rounds.presence import HospitalsAwayError
from erosion_common.study.study import Study, load_study
from erosion_common.support.files import read_named, version_of, write_atomically
from erosion_server.run.run_folder import RunFolder, new_run_folder, resumed_run_folder

logger = logging.getLogger("erosion.queue")

RunOne = Callable[[Study, RunFolder], object]
LOOK_SECONDS = 1.0
DONE, FAILED = "done", "failed"
RUNS = ".runs.json"  # by a waiting file's name: the run that it has begun
LEAVES = ".leaves.json"  # the file that is being put away, and where to


class StudyQueue:
    """Use `serve`. Nothing is remembered but by the files."""

    def __init__(
        self,
        folder: Path,
        runs: Path,
        run: RunOne,
        *,
        idle: Callable[[], None] = lambda: None,
        withdrawn: Callable[[RunFolder], None] = lambda _folder: None,
    ) -> None:
        """`runs`: where run folders are made. `idle` is called while there is no study to run.

        `withdrawn` receives the run of a study that has had a turn and was then taken away.
        """
        self._folder, self._runs, self._run = folder, runs, run
        self._idle, self._withdrawn = idle, withdrawn
        self._turns: Counter[str] = Counter()  # that a waiting file has had
        self._gave_way: dict[str, RunFolder] = {}  # by the file's name
        self._seen: dict[Path, tuple[int, ...]] = {}  # to let a file be written to its end

    def serve(self, *, until_empty: bool) -> None:
        """Run the files that are there and those that come; `until_empty`: end after the last."""
        self._forget_what_left()
        while True:
            self._part_with_those_taken_away()
            if (path := self._next()) is not None:
                self._take(path)
            elif until_empty and not self._waiting():
                return
            else:
                self._idle()
                time.sleep(LOOK_SECONDS)

    def _waiting(self) -> list[Path]:
        return sorted(self._folder.glob("*.toml"))

    def _part_with_those_taken_away(self) -> None:
        for name in self._gave_way.keys() - {path.name for path in self._waiting()}:
            del self._turns[name]
            self._withdrawn(self._gave_way.pop(name))

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
        except Exception as problem:  # a fault of ours, which must not keep the others waiting
            logging.getLogger("erosion").info("%s", path.name, exc_info=True)  # where -v is given
            words = f"a fault of this program ({type(problem).__name__}: {problem}); -v shows more"
            self._leave_out(path, content, words)
        else:
            logger.info("%s has ended; its report is %s", path.name, folder.report)
            self._put_away(path, content, self._free_place(path, DONE))

    def _run_folder(self, path: Path, study: Study) -> RunFolder:
        """Of the run that was cut off, if there is one of this very study."""
        runs = self._known_runs()
        if path.name in runs:
            try:
                folder = RunFolder(Path(runs[path.name]))
                if not folder.has_ended:
                    folder = resumed_run_folder(folder.path)
                if load_study(folder.study).digest == study.digest:
                    return folder
                logger.warning(
                    "%s starts again: it is another study than that of the run in %s, which stays",
                    path.name,
                    folder.path,
                )
            except ErosionError as problem:
                logger.warning("%s starts again: %s", path.name, problem)
        folder = new_run_folder(self._runs, study)
        self._note_runs({**runs, path.name: str(folder.path.resolve())})
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
        leaves = {"file": path.name, "target": f"{target.parent.name}/{target.name}"}
        write_atomically(self._folder / LEAVES, json.dumps(leaves) + "\n")
        if _content(path) == content:
            with suppress(FileNotFoundError):  # somebody took it away meanwhile
                path.replace(target)
        elif path.exists():
            logger.info("%s was changed meanwhile; it is run again", path.name)
            if content is not None:
                write_atomically(target, content)
        self._turns.pop(path.name, None)
        self._gave_way.pop(path.name, None)
        self._forget_what_left()

    def _forget_what_left(self) -> None:
        """Of a file that was put away, the run is no later file's of the same name.

        Also called at the start: the program may have been cut off between the two.
        """
        leaves = self._read(LEAVES)
        name, target = leaves.get("file", ""), leaves.get("target", "")
        if target and ((self._folder / target).exists() or not (self._folder / name).exists()):
            self._note_runs({k: v for k, v in self._known_runs().items() if k != name})
        (self._folder / LEAVES).unlink(missing_ok=True)

    def _known_runs(self) -> dict[str, str]:
        return self._read(RUNS)

    def _read(self, file: str) -> dict[str, str]:
        try:
            known = json.loads(read_named(self._folder / file).decode())
        except (OSError, ValueError, RecursionError):
            return {}
        return {str(k): str(v) for k, v in known.items()} if isinstance(known, dict) else {}

    def _note_runs(self, runs: dict[str, str]) -> None:
        write_atomically(self._folder / RUNS, json.dumps(runs, indent=2) + "\n")


def _content(path: Path) -> bytes | None:
    """None where it cannot be read."""
    try:
        return read_named(path)
    except OSError:
        return None
