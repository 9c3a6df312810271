"""The compose testbed's one-shot service: puts data, keys and site files into the volumes.

`python -m erosion.simulation.container_setup breast-cancer --coordinator coordinator`

Runs as root: every volume ends up belonging to the user that the other services run as. What was
dealt is written last, in the federation's `dealt.toml`. With that file nothing is made again, so
that `docker compose up` can be repeated, and a study with other data is refused; without it, an
unfinished set-up is replaced.
"""

import argparse
import os
import re
import shutil
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from erosion.simulation.testbed import study_path
from erosion.simulation.testbed_sites import TESTBED_BUDGET
from erosion.sources import Data, make_hospitals
from erosion_common.errors import ErosionError, StudyError
from erosion_common.sealed import pinned_keys
from erosion_common.settings.base import read_toml
from erosion_common.study.study import Study, load_study
from erosion_common.support.files import write_atomically
from erosion_server.enrolment.enrolment import enrol_site, init_federation, write_peers
from erosion_server.enrolment.federation_folder import Address, FederationFolder

USER = 10001  # of the image
DEALT = "dealt.toml"
REMEDY = "Remove them, with all that the hospitals keep there: docker compose down --volumes"
SITE_TEMPLATE = 'path = "patients.csv"'


def set_up(
    study_file: Path, *, coordinator: str, federation: Path, sites: Path, runs: Path, data_dir: Path
) -> None:
    """Fill `federation` and `sites`/1, 2, ...; the user's hospital is number 1."""
    study = load_study(study_file)
    numbered = (path for path in sites.iterdir() if path.name.isdigit())
    volumes = sorted(numbered, key=lambda path: int(path.name))
    order = study.user_first
    if len(order) > len(volumes):
        raise StudyError(
            f"{study_file} names {len(order)} hospitals, the compose file has {len(volumes)}",
            remedy="Add services and volumes, or name fewer.",
        )
    mark, dealt = federation / DEALT, _dealt(study, coordinator)
    if mark.exists():
        _check_dealt(read_toml(mark, "list of what was dealt", StudyError), dealt)
    else:
        _clear(federation, volumes)
        _deal(study, coordinator, federation, dict(zip(order, volumes, strict=False)), data_dir)
        write_atomically(mark, tomli_w.dumps(dealt))
    shutil.copy(study_file, federation / "study.toml")
    _share(runs)
    theirs = [entry for path in (federation, *volumes) for entry in (path, *path.rglob("*"))]
    for entry in theirs:
        os.lchown(entry, USER, USER)


def _share(runs: Path) -> None:
    """Let the coordinator write into a folder that stays its owner's, with runs of the owner's."""
    status = runs.stat()
    if status.st_uid in (0, USER):  # Docker made it, and it is nobody's yet
        runs.chmod(0o1777)
    else:
        os.chown(runs, status.st_uid, USER)
        runs.chmod(status.st_mode | 0o070)


def _dealt(study: Study, coordinator: str) -> dict[str, Any]:
    """Return all that data, keys and site files depend on, as TOML holds it."""
    return {
        "name": study.name,
        "coordinator": coordinator,
        "user": study.user,
        "hospitals": list(study.user_first),
        "seed": study.seed,
        **({} if study.testbed is None else {"testbed": study.testbed.model_dump(mode="json")}),
    }


def _check_dealt(there: Mapping[str, Any], dealt: Mapping[str, Any]) -> None:
    if differing := [key for key in {**there, **dealt} if there.get(key) != dealt.get(key)]:
        raise StudyError(
            f"The volumes were dealt for the study {there.get('name')}; {dealt['name']} differs in"
            f" {', '.join(differing)}",
            remedy=REMEDY,
        )


def _clear(federation: Path, volumes: Sequence[Path]) -> None:
    """Take away what a set-up that was cut off left; no site has run on that."""
    for volume in volumes:
        if any((volume / folder).exists() for folder in ("records", "state")):
            raise StudyError(
                "A hospital has run on these volumes, and nothing says for which study they were"
                " dealt",
                remedy=REMEDY,
            )
    for path in (entry for volume in (federation, *volumes) for entry in volume.iterdir()):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _deal(
    study: Study, coordinator: str, federation: Path, volume_of: Mapping[str, Path], data_dir: Path
) -> None:
    hospitals = make_hospitals(study, federation / "made", data_dir)
    folder = FederationFolder(federation / "enrolment")
    init_federation(folder, Address(hosts=(coordinator,), port=9092))
    for name, volume in volume_of.items():
        enrol_site(folder, name)
        _unpack(folder.kit(name), volume)
        folder.kit(name).unlink()  # the key is the hospital's alone
        data = Path(hospitals[name]["path"])
        shutil.copy(data, volume / data.name)
        _name_data(volume / "site.toml", {**hospitals[name], "path": data.name})
    for volume in volume_of.values():
        write_peers(folder, volume / pinned_keys.NAME)
    shutil.rmtree(federation / "made")


def _unpack(kit: Path, volume: Path) -> None:
    """The kit's files themselves, without the folder around them."""
    with tarfile.open(kit) as archive:
        for member in archive.getmembers():
            if content := archive.extractfile(member):  # None: a folder
                path = volume / Path(member.name).name
                path.write_bytes(content.read())
                path.chmod(member.mode)


def _name_data(site_file: Path, data: Data) -> None:
    """Fill in what the kit leaves to the hospital."""
    text = site_file.read_text(encoding="utf-8")
    if SITE_TEMPLATE not in text:
        raise StudyError(f"{site_file} is not the site file of a kit.")
    text = text.replace(SITE_TEMPLATE, tomli_w.dumps(data).rstrip("\n"))
    text = text.replace('automatic = "never"', 'automatic = "within_limits"')  # nobody is there
    for key, most in TESTBED_BUDGET.items():
        text = re.sub(rf"^{key} = \d+", f"{key} = {most}", text, flags=re.MULTILINE)
    site_file.write_text(text, encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("study", help="a study file, or the name of one that comes along")
    parser.add_argument("--coordinator", required=True, help="the name that sites dial")
    for name in ("federation", "sites", "runs"):
        parser.add_argument(f"--{name}", type=Path, default=Path("/") / name)
    parser.add_argument("--data-dir", type=Path, default=Path("/data"))
    options = parser.parse_args(arguments)
    try:
        set_up(
            study_path(options.study),
            coordinator=options.coordinator,
            federation=options.federation,
            sites=options.sites,
            runs=options.runs,
            data_dir=options.data_dir,
        )
    except ErosionError as problem:
        print(f"set-up: {problem}", file=sys.stderr)
        return problem.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
