"""Atomic writing."""

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from erosion_client.connection.credentials import credentials_for
from erosion_client.enrolment.install import install
from erosion_client.site_file import Site, load_site
from erosion_common.errors import ErosionError, SiteError
from erosion_common.formats.sent_log import verify
from erosion_common.rounds.checkpoint import load_model
from erosion_common.sealed.audit import read_disclosure
from erosion_common.sealed.pinned_keys import read_pinned_keys
from erosion_common.study.study import load_study
from erosion_common.support import files
from erosion_common.support.files import lines_of, read_named, replacing, write_atomically
from erosion_common.support.keys import load_private_key
from erosion_server.enrolment.certificates import load_certificate, read_request
from tests.support.refusals import refused
from tests.support.synced import synced


def test_of_two_programs_that_make_a_file_at_once_the_first_ones_stays(tmp_path: Path) -> None:
    path = tmp_path / "secret.key"
    with replacing(path, mode=0o600, first_stays=True) as slower:
        write_atomically(path, "first", mode=0o600, first_stays=True)
        slower.write_text("second")
    assert path.read_text() == "first"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_where_no_links_can_be_made_a_new_file_is_still_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", no_links)
    write_atomically(tmp_path / "secret.key", "first", first_stays=True)
    assert (tmp_path / "secret.key").read_text() == "first"
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_others_may_do_what_the_umask_lets_them(tmp_path: Path, mask: int, mode: int) -> None:
    file = tmp_path / "file"
    before = os.umask(mask)
    try:
        write_atomically(file, "x")
    finally:
        os.umask(before)
    assert stat.S_IMODE(file.stat().st_mode) == mode


def test_a_failure_leaves_the_old_file_and_no_half_written_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    write_atomically(file, "old")

    def full_disk(_descriptor: int) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("os.fdatasync", full_disk)
    with refused(OSError):
        write_atomically(file, "new")
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_a_name_is_on_the_disk_after_what_it_names_and_so_are_new_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = synced(monkeypatch)
    path = tmp_path / "a" / "b" / "file"
    write_atomically(path, "new")
    in_folder = [("fsync", path.parent), ("fsync", tmp_path / "a"), ("fsync", tmp_path)]
    temporary = calls[0][1]
    assert temporary.parent == path.parent
    assert calls == [("fdatasync", temporary), ("replace", temporary), *in_folder]
    calls.clear()
    write_atomically(path, "newer")
    assert [call for call, _ in calls] == ["fdatasync", "replace", "fsync"]
    assert calls[-1] == ("fsync", path.parent)


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP])
def test_a_file_system_that_cannot_wait_for_a_folder_is_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def unknown(_descriptor: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("os.fsync", unknown)
    write_atomically(tmp_path / "file", "x")
    assert (tmp_path / "file").read_text() == "x"
    code = errno.EIO  # the disk fails to keep it
    with pytest.raises(OSError) as caught:  # noqa: PT011 - by its number
        write_atomically(tmp_path / "file", "x")
    assert caught.value.errno == errno.EIO


def test_a_pipe_or_a_device_that_is_named_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with refused(OSError, path):
            read_named(path)
    with refused(IsADirectoryError, tmp_path):
        read_named(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_named(tmp_path / "none")


def test_no_file_takes_the_place_of_a_device_a_pipe_or_a_folder(tmp_path: Path) -> None:
    pipe, link, folder = (tmp_path / name for name in ("pipe", "link", "folder"))
    os.mkfifo(pipe)
    link.symlink_to("/dev/null")
    folder.mkdir()
    for path in (pipe, link, folder):
        with refused(OSError) as caught:
            write_atomically(path, "text")
        assert caught.value.filename == str(path)
    assert sorted(tmp_path.iterdir()) == [folder, link, pipe]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert link.is_symlink()


def test_a_file_that_is_named_fills_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(2**20))
    assert len(read_named(path, most_bytes=2**20)) == 2**20
    os.truncate(path, 2**20 + 1)
    with refused(OSError, "1 MiB"):
        read_named(path, most_bytes=2**20)


def test_a_line_without_an_end_fills_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MOST_LINE_BYTES", 2**20)
    path = tmp_path / "file"
    path.write_bytes(b"one\n" + bytes(2**20 - 1) + b"\n")
    assert [len(line) for line in lines_of(path)] == [4, 2**20]
    os.truncate(path, 2**22)
    with refused(OSError, "1 MiB"):
        list(lines_of(path))


# -- Every file that a person names is read only where it is an ordinary file of a li ------------


def site(path: Path) -> Site:
    own = {"root_certificate": path, "certificate": path, "private_key": path}
    return Site.model_validate(
        {
            "name": "a",
            "data": {"path": "patients.csv"},
            "coordinator": {"address": "127.0.0.1:1", **own},
        }
    )


READERS: dict[str, Callable[[Path], object]] = {
    "study file": load_study,
    "site file": load_site,
    "private key": lambda path: load_private_key(path, SiteError),
    "peers' keys": lambda path: read_pinned_keys(path, SiteError),
    "authority": load_certificate,
    "request": read_request,
    "a site's files": lambda path: credentials_for(site(path).coordinator),
    "kit": lambda path: install(path, site(path)),
    "opening": lambda path: read_disclosure(path, SiteError),
    "model": load_model,
    "log": verify,
}


@pytest.mark.parametrize("reader", READERS)
def test_a_pipe_is_explained(tmp_path: Path, reader: str) -> None:
    os.mkfifo(path := tmp_path / "pipe", 0o600)
    with refused(ErosionError):
        READERS[reader](path)


@pytest.mark.parametrize("reader", [r for r in READERS if r not in ("opening", "model", "log")])
def test_a_file_that_is_far_too_large_is_explained(tmp_path: Path, reader: str) -> None:
    path = tmp_path / "file"
    path.touch(0o600)
    os.truncate(path, files.MOST_NAMED_BYTES + 1)
    with refused(ErosionError, "MiB"):
        READERS[reader](path)
