"""How a program ends: a mistake gives a message and a distinct exit code, never a traceback."""

import argparse
import atexit
import errno
import logging
import os
import re
import signal
import stat
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from types import FrameType

from erosion_common.errors import ErosionError
from erosion_common.support.logs import JsonLines, never_fail_to_encode, open_missing_streams, stamp
from erosion_common.support.text import shown

FAULT, UNUSABLE, INTERRUPTED = 70, 74, 130  # EX_SOFTWARE and EX_IOERR of sysexits.h
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # the last: its terminal was closed
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NOT_UTF_8 = re.compile("[^\\s\"']*[\udc80-\udcff][^\\s\"']*")  # as Python reads such a name


def in_words(run: Callable[[], int | None], options: argparse.Namespace) -> int:
    """Run a program with its `options`; an error becomes a message. Returns the exit code."""
    open_missing_streams()
    never_fail_to_encode(sys.stdout)
    never_fail_to_encode(sys.stderr)
    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as a shell starts it in the background
            signal.signal(number, partial(_interrupt, options))
    try:
        code = run() or 0
        print(end="", flush=True)  # while it can be said that it failed; there may be no output
        return code
    except ErosionError as problem:
        _say(str(problem), options)
        return problem.exit_code
    except KeyboardInterrupt:
        return _interrupted(options)
    except BrokenPipeError:  # `erosion ... | head`
        _drop_output(sys.stdout.fileno())
        return 0
    except SystemExit as problem:
        if isinstance(problem.__context__, BrokenPipeError):
            return 0  # which rich made of the same
        if fault := _of_package(problem):
            _say(str(fault), options)
            return fault.exit_code
        raise
    except Exception as problem:  # noqa: BLE001 - a fault of ours; people still get a sentence
        if isinstance(problem.__cause__, KeyboardInterrupt):  # what Python makes of it in a class
            return _interrupted(options)
        trace = problem if getattr(options, "verbose", 0) else None
        if _is_out_of_memory(problem):  # before what imports more
            words = "there is not enough memory for this. Use a machine that has more, or raise"
            _say(f"{words} the limit of this account or container (`ulimit -v`).", options, trace)
            return UNUSABLE
        if _has_no_threads(problem):
            words = "no more threads can be started. Raise the limit of this account, container or"
            _say(f"{words} unit (`ulimit -u`, TasksMax), or of its memory.", options, trace)
            return UNUSABLE
        if fault := _of_package(problem):
            _say(f"{fault} -v shows where." if trace is None else str(fault), options, trace)
            return fault.exit_code
        if isinstance(problem, OSError) and problem.filename is not None:
            _say(_unusable(problem), options, trace)
            return UNUSABLE
        if isinstance(problem, OSError) and problem.errno in NO_ROOM:
            _drop_output(sys.stdout.fileno())
            words = f"{problem.strerror}: a file or what is printed here could not be written."
            _say(f"{words} Free some space there, and run the command again.", options, trace)
            return UNUSABLE
        if isinstance(problem, UnicodeEncodeError) and (name := _NOT_UTF_8.search(problem.object)):
            words = (
                f"{name[0]} is the name of a file or folder, and not UTF-8, as this needs it to be."
            )
            _say(f"{words} Rename it, or work in another folder.", options, trace)
            return UNUSABLE
        from erosion_common.settings.packages import loaded_packages

        packages = loaded_packages()
        or_of = f" or of an installed package ({packages})" if packages else ""
        _say(
            f"a fault of this program{or_of} ({type(problem).__name__}: {problem}). Please report"
            f" it with {'the output of -v' if trace is None else 'the output above'}.",
            options,
            trace,
        )
        return FAULT
    finally:
        atexit.register(_end_in_silence)


def _is_out_of_memory(problem: Exception) -> bool:
    if isinstance(problem, MemoryError) or "can't allocate memory" in str(problem):  # torch's
        return True
    return isinstance(problem, OSError) and problem.errno == errno.ENOMEM


def _has_no_threads(problem: Exception) -> bool:
    return isinstance(problem, RuntimeError) and "can't start new thread" in str(problem)


def _of_package(problem: BaseException) -> ErosionError | None:
    """Return the error for what an installed package raised, or None."""
    from erosion_common.settings.packages import blamed, failed  # not for `erosion --help`

    return failed(where, problem) if (where := blamed(problem)) else None


def _interrupted(options: argparse.Namespace) -> int:
    _end_in_silence()
    _say("interrupted", options)
    return INTERRUPTED


def _drop_output(stream: int) -> None:
    """Drop what is still to be printed, or Python would complain of it at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream)


def _unusable(problem: OSError) -> str:
    where = problem.filename if problem.filename2 is None else problem.filename2
    if isinstance(where, bytes):
        where = os.fsdecode(where)
    remedy = "Check the path, and the disk."
    if isinstance(problem, PermissionError):
        remedy = (
            f"This account (number {os.geteuid()}) may not use it: run the command as the account"
            " that it belongs to, as `ls -ld` shows, or name another place."
        )
    return f"{where}: {problem.strerror}. {remedy}"


def _say(words: str, options: argparse.Namespace, problem: BaseException | None = None) -> None:
    """Print the program's last message, in the form of its log; with the traceback of `problem`."""
    if getattr(options, "log_format", "text") == "json":
        trace = (type(problem), problem, problem.__traceback__) if problem is not None else None
        record = logging.LogRecord("erosion", logging.ERROR, "", 0, words, (), trace)
        print(JsonLines().format(record), file=sys.stderr)
        return
    if problem is not None:
        traceback.print_exception(problem)
    # In a log, where the program has one, it is a line like the others.
    is_logged = hasattr(options, "log_format") and not sys.stderr.isatty()
    head = f"{stamp(time.time())} ERROR " if is_logged else ""
    print(f"{head}erosion: {shown(words)}", file=sys.stderr)


def _interrupt(options: argparse.Namespace, number: int, frame: FrameType | None) -> None:
    """Interrupt the program, and end it at once in an import, which may swallow an exception."""
    if number == signal.SIGHUP:
        for stream in (1, 2):  # printing to a closed terminal fails
            if stat.S_ISCHR(os.fstat(stream).st_mode):
                _drop_output(stream)
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            os._exit(_interrupted(options))
        frame = frame.f_back
    raise KeyboardInterrupt


def _end_in_silence() -> None:
    """From now on end at once when a signal comes, without another word."""
    for again in ENDING:
        signal.signal(again, signal.SIG_DFL)
