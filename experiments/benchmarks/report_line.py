"""The last lines of a benchmark: one comparison each, for people and as JSON for machines."""

import argparse
import json
import os
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from erosion.simulation.program import output_file
from erosion_server.run.provenance import commit

PACKAGES = ("flwr", "grpcio", "numpy", "protobuf", "torch")


@dataclass(frozen=True, slots=True)
class ReportLine:
    """Ours and one peer, in one unit."""

    name: str  # "round_overhead.tiny.vs_stock"
    ours: float
    peer: float
    unit: str  # "s/round"
    lower_is_better: bool = True

    @property
    def ratio(self) -> float:
        """How many times better ours is: above 1, ours wins, in any unit."""
        better, worse = (self.peer, self.ours) if self.lower_is_better else (self.ours, self.peer)
        return better / worse if worse else float("inf")

    def __str__(self) -> str:
        return (
            f"{self.name} ratio={self.ratio:.3g} ours={self.ours:.4g} peer={self.peer:.4g} "
            f"{self.unit}"
        )


def parser_of(about: str | None) -> argparse.ArgumentParser:
    """Return a benchmark's command line, with --json."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=about, formatter_class=raw)
    parser.add_argument(
        "--json", type=output_file, metavar="FILE", help="also write the result as JSON"
    )
    return parser


def report(
    lines: Sequence[ReportLine],
    *,
    json_path: Path | None = None,
    details: Mapping[str, Any] | None = None,
) -> None:
    """Print the lines; with `json_path`, write them with all that is needed to repeat them."""
    for line in lines:
        print(line)
    sys.stdout.flush()
    if json_path is not None:
        content = {
            "lines": [_as_json(line) for line in lines],
            **provenance(),
            "details": dict(details or {}),
        }
        json_path.parent.mkdir(parents=True, exist_ok=True)
        json_path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def provenance() -> dict[str, Any]:
    """Return the command, the commit, the versions and the machine behind a figure."""
    return {
        "command": command_line(),
        "commit": commit(),
        "versions": {"python": platform.python_version(), **_versions()},
        "machine": {
            "system": f"{platform.system()} {platform.machine()}",
            "processors": len(os.sched_getaffinity(0)),
            "load_average": round(os.getloadavg()[0], 2),
        },
    }


def command_line() -> str:
    """Return the command that started this program, without the paths of this machine."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    program = ["python", "-m", spec.name] if spec is not None else [Path(sys.argv[0]).name]
    return shlex.join([*program, *sys.argv[1:]])


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "absent"
    return found


def _as_json(line: ReportLine) -> dict[str, Any]:
    return {
        "name": line.name,
        "ratio": line.ratio,
        "ours": line.ours,
        "peer": line.peer,
        "unit": line.unit,
        "lower_is_better": line.lower_is_better,
    }
