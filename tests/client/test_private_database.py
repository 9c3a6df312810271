"""A site's records on disk: private, all or nothing, and clear about what is wrong."""

import os
import sqlite3
import subprocess
import sys
from contextlib import closing, nullcontext, suppress
from pathlib import Path

import pytest

from erosion_client.records.private_database import PrivateDatabase
from erosion_common.errors import NotReady, SiteError
from tests.support.said import raises

TABLES = "create table if not exists things (name text primary key);"


def opened(path: Path | None) -> PrivateDatabase:
    return PrivateDatabase(
        path, TABLES, version=2, holds="the things", without="Nothing goes without them."
    )


def things(file: PrivateDatabase) -> list[str]:
    return [name for (name,) in file.execute("select name from things order by name")]


def written(path: Path | None, *names: str) -> None:
    with closing(opened(path)) as file:
        file.execute_many("insert into things values (?)", [(name,) for name in names])


def test_what_was_written_is_there_for_the_next_program(tmp_path: Path) -> None:
    path = tmp_path / "new" / "things.sqlite"
    written(path, "a")
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    before = path.stat().st_mtime_ns
    opened(path).close()
    assert path.stat().st_mtime_ns == before
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("analyze")
    assert things(opened(path)) == ["a"]
    written(None, "a")
    assert things(opened(None)) == []  # in memory nothing is kept


@pytest.mark.parametrize("fails", [False, True])
def test_what_follows_an_unflushed_transaction_is_flushed(tmp_path: Path, fails: bool) -> None:
    file, full = opened(tmp_path / "things.sqlite"), [(2,)]
    with suppress(ValueError), file.transaction(flushed=False):
        assert file.execute("pragma synchronous") == [(1,)]
        if fails:
            raise ValueError
    assert file.execute("pragma synchronous") == full


@pytest.mark.parametrize("is_nested", [False, True])
@pytest.mark.parametrize("interruption", [ValueError, KeyboardInterrupt, SiteError])
def test_an_interruption_leaves_nothing(
    tmp_path: Path, interruption: type[BaseException], is_nested: bool
) -> None:
    file = opened(tmp_path / "things.sqlite")

    def write_and_stop() -> None:
        with file.transaction():
            with file.transaction() if is_nested else nullcontext():
                file.execute_many("insert into things values (?)", [("a",), ("b",)])
            if interruption is SiteError:  # a statement that fails
                file.execute("insert into things values (?)", ("a",))
            raise interruption

    with pytest.raises(interruption):
        write_and_stop()
    assert things(file) == []
    with file.transaction():
        file.execute("insert into things values (?)", ("c",))
    assert things(opened(tmp_path / "things.sqlite")) == ["c"]


def test_a_second_program_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("erosion_client.records.private_database.WAIT_SECONDS", 0.01)
    first, second = opened(tmp_path / "things.sqlite"), opened(tmp_path / "things.sqlite")
    with first.transaction():
        first.execute("insert into things values (?)", ("a",))
        words = "by another program for 0.01 s (database is locked)…Let that program end"
        with raises(SiteError, words), second.transaction():
            pytest.fail("only one program at a time")
        assert things(second) == []
    with second.transaction():
        assert things(second) == ["a"]


def test_opening_the_file_again_lets_go_of_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "things.sqlite"
    first = opened(path)
    write = f"import sqlite3; sqlite3.connect({str(path)!r}, 0).execute('begin immediate')"
    with first.transaction():
        first.execute("insert into things values (?)", ("a",))
        opened(path).close()
        other = subprocess.run([sys.executable, "-c", write], capture_output=True, text=True)
        assert "locked" in other.stderr
    assert things(first) == ["a"]


def test_a_file_of_another_version_is_named_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "things.sqlite"
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("pragma user_version = 3")
    with raises(SiteError, "things.sqlite", "3", "2"):
        opened(path)
    with closing(sqlite3.connect(path)) as other, other:
        assert other.execute("select count(*) from sqlite_master").fetchone() == (0,)


def test_a_folder_that_cannot_be_made_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    words = "holds the things, cannot be used…Nothing goes without them. Check the disk"
    with raises(SiteError, words):
        opened(tmp_path / "file" / "things.sqlite")


def test_a_pipe_or_a_device_in_its_place_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/null")):
        with raises(SiteError, "things", "cannot", "ordinary file"):
            opened(path)


def test_a_damaged_file_is_refused_when_it_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "things.sqlite"
    written(path, *(f"{i:04}" * 50 for i in range(1000)), "some thing")
    whole = path.read_bytes()
    middle = len(whole) // 2 // 4096 * 4096
    assert whole.count(b"some thing") == 2  # in the table and in the index
    for damaged in (
        whole[:middle] + bytes(100) + whole[middle + 100 :],
        whole.replace(b"some thing", b"some thong", 1),
    ):
        path.write_bytes(damaged)
        with raises(SiteError, "things", "cannot", "restore", "backup"):
            opened(path)
    path.write_bytes(whole)
    with closing(opened(path)) as file:
        file.execute("update things set name = x'00' where name like '0500%'")
    with raises(SiteError, "things.name"):
        opened(path)


@pytest.mark.parametrize("num_bytes", [0, 1, -1])
def test_an_emptied_or_cut_file_is_refused(tmp_path: Path, num_bytes: int) -> None:
    path = tmp_path / "things.sqlite"
    written(path, "a")
    left = path.read_bytes()[:num_bytes]
    path.write_bytes(left)
    with raises(SiteError, "things", "emptied"):
        opened(path)
    assert path.read_bytes() == left


def test_two_programs_make_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, link = tmp_path / "things.sqlite", os.link

    def after_another(made: Path, to: Path) -> None:
        monkeypatch.setattr(os, "link", link)
        opened(path).execute("insert into things values (?)", ("a",))
        link(made, to)

    monkeypatch.setattr(os, "link", after_another)
    assert things(opened(path)) == ["a"]
    assert not [*tmp_path.glob(".*")]


def test_no_links_are_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "link", refuse)
    opened(tmp_path / "things.sqlite").execute("insert into things values (?)", ("a",))
    assert things(opened(tmp_path / "things.sqlite")) == ["a"]


def test_a_file_that_was_removed_or_replaced_meanwhile_is_not_written_into(tmp_path: Path) -> None:
    path, away = tmp_path / "things.sqlite", tmp_path / "away"
    file, writes = opened(path), tmp_path / "things.sqlite-wal"
    for gone in (path, writes):
        gone.rename(away)
        for is_replaced in (False, True):
            if is_replaced:
                gone.write_bytes(away.read_bytes())
            for use in (lambda: things(file), lambda: file.execute("delete from things")):
                with raises(NotReady, "moved, removed"):
                    use()
        away.replace(gone)
        assert things(file) == []
    path.rename(away)
    with raises(SiteError, "things.sqlite", "-wal"):  # which has writes of another file
        opened(path)


def test_a_network_file_system_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounted = "39 1 8:1 / / rw - ext4 /dev/vda rw\n40 39 0:51 / /n rw - nfs4 s:/n rw"
    at = os.stat_result((*tmp_path.stat()[:2], os.makedev(0, 51), *tmp_path.stat()[3:]))
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: mounted)
    monkeypatch.setattr(Path, "stat", lambda *_, **__: at)
    with raises(SiteError, "things.sqlite", "nfs4", "compute.state"):
        opened(tmp_path / "things.sqlite")
