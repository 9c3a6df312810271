"""The provenance of a result: program version, commit, command."""

import os
import platform
import shlex
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

COMMIT_VARIABLE = "EROSION_COMMIT"  # set in an image, which holds no checkout
NOT_PROGRAM = ("docs", "experiments/results", "tests")  # folders that change no figure
CHANGES = "+changes"  # behind the commit of a checkout that holds something else
COMMAND_VARIABLE = "EROSION_COMMAND"  # set by a program that starts the coordinator for somebody


def commit() -> str:
    """Return the program's git commit, "+changes" where its files differ from it, or "unknown"."""
    if built_from := os.environ.get(COMMIT_VARIABLE):
        return built_from
    folder = Path(__file__).resolve().parents[3]

    def git(*arguments: str) -> str:
        run = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
        return run.stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")) != folder:
            return "unknown"  # installed somewhere inside another project's checkout
        others = (f":(top,exclude){name}" for name in NOT_PROGRAM)
        changes = git("status", "--porcelain", "--", ":/", *others)
        return git("rev-parse", "HEAD") + (CHANGES if changes else "")
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def command() -> str:
    """Return what a person typed: this process's command line, or that of the testbed around it."""
    program = Path(sys.argv[0]).stem.replace("__main__", "erosion")  # `python -m erosion`
    return os.environ.get(COMMAND_VARIABLE) or shlex.join([program, *sys.argv[1:]])


def versions() -> dict[str, str]:
    """Return versions of what a model's numbers depend on."""
    found = {"python": sys.version.split()[0]}
    for name in ("erosion", "torch", "numpy", "flwr"):
        try:
            found[name] = version("erosion-common" if name == "erosion" else name)
        except PackageNotFoundError:
            found[name] = "unknown"
    return found


def machine() -> str:
    """Return the processor's name and the number of cores that this process may use."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    cores = len(os.sched_getaffinity(0))
    return f"{names[0] if names else platform.machine()}, {cores} core{'s' * (cores != 1)}"
