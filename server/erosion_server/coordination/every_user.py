"""A study with every hospital as its user: a part for each, and their overview."""

import logging
from collections.abc import Callable
from shlex import quote

from erosion_common.errors import CheckpointError, DiskError, ErosionError, HopelessError, RunError
from erosion_common.formats.json_file import write_json
from erosion_common.rounds.presence import HospitalsAwayError, UserDeclinedError
from erosion_common.study.study import Study
from erosion_server.output.events import EveryUserFinished, RunEvent, UserFailed
from erosion_server.output.overview_page import write_overview
from erosion_server.run.overview import Overview, line_of, overview
from erosion_server.run.result import Result, read_result
from erosion_server.run.run_folder import RunFolder, user_folder

RunOne = Callable[[Study, RunFolder], Result]


def run_every_user(
    study: Study, folder: RunFolder, run_one: RunOne, notify: Callable[[RunEvent], None]
) -> Overview:
    """Run the study once for each of its hospitals; what is finished already is not run again.

    A hospital that fails costs no other its model. The overview is written with those there are.
    Raises RunError where a hospital has no model and may get one when the run is resumed,
    HopelessError where none has and none may, and CheckpointError where a part was run with other
    settings.
    """
    results: dict[str, Result] = {}
    declined: dict[str, str] = {}
    hopeless: dict[str, str] = {}  # would fail in the same way again
    failed: dict[str, str] = {}
    are_away = True  # all that failed. No exception is kept: it holds its part's parameters
    parts = {user: user_folder(folder, study.for_user(user)) for user in study.hospitals}
    for user, part in parts.items():
        try:
            results[user] = _finished(part) or run_one(study.for_user(user), part)
        except UserDeclinedError as problem:
            declined[user] = str(problem)
        except HopelessError as problem:
            hopeless[user] = str(problem)
        except (OSError, DiskError):  # the run's own disk
            raise
        except ErosionError as problem:
            failed[user] = str(problem)
            are_away &= isinstance(problem, HospitalsAwayError)
        except Exception as problem:  # a fault of ours, which must not cost the others their models
            logging.getLogger("erosion").info("the part of %s", user, exc_info=True)
            words = f"a fault of this program ({type(problem).__name__}: {problem}); -v shows more"
            failed[user] = words
            are_away = False
        else:
            continue
        notify(UserFailed(user, (declined | hopeless | failed)[user]))
    unfinished = HospitalsAwayError if failed and are_away else RunError  # who is away may come
    if not results:
        if hopeless and not failed:
            unfinished = HopelessError
        first = next(iter((failed | hopeless | declined).values()))
        raise unfinished(f"No hospital has a model. The first one's reason: {first}")
    found = overview(
        study,
        {user: line_of(result) for user, result in results.items()},
        declined | hopeless | failed,
        started=min(result.started for result in results.values()),
        seconds=sum(result.seconds for result in results.values()),
        resumed=any(result.resumed for result in results.values()),
    )
    write_overview(folder.report, found)
    if failed:
        raise unfinished(
            f"{', '.join(failed)}: no model yet, for the reasons above. {folder.report} shows the"
            f" others. Resume with `erosion server --resume {quote(str(folder.path))}`."
        )
    write_json(folder.result, found)
    notify(EveryUserFinished(found, folder.path))
    return found


def _finished(part: RunFolder) -> Result | None:
    """Return the result of a part that an earlier start of this run has finished."""
    if not part.has_ended:
        return None
    try:
        return read_result(part.result)
    except CheckpointError as problem:  # written by another version, or edited
        raise RunError(f"{problem} To do so, delete {part.path} and resume.") from None
