"""Atomic writing."""

import os
import stat
from pathlib import Path

import pytest

from erosion.common.support.files import write_atomically


def test_text_and_bytes_are_written_as_given(tmp_path: Path) -> None:
    write_atomically(tmp_path / "text", "Zürich\n")
    write_atomically(tmp_path / "binary", b"\x00\xff")
    assert (tmp_path / "text").read_bytes() == "Zürich\n".encode()
    assert (tmp_path / "binary").read_bytes() == b"\x00\xff"


def test_missing_folders_are_made(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a" / "b" / "file", "x")
    assert (tmp_path / "a" / "b" / "file").read_text() == "x"


def test_an_old_file_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    file = tmp_path / "file"
    write_atomically(file, "a long old content")
    write_atomically(file, "new")
    assert file.read_text() == "new"
    assert list(tmp_path.iterdir()) == [file]


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
    with pytest.raises(OSError, match="No space left"):
        write_atomically(file, "new")
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]
