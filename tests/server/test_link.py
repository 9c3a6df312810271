"""The coordinator's port: how many connections it takes, and where updates are kept."""

from pathlib import Path

from erosion.server.link import Link
from erosion.server.link.link import most_connections


def test_connections_are_bound_by_files_and_by_memory_and_some_are_always_taken() -> None:
    sixteen_gigabytes = 2**34
    assert most_connections(1024, sixteen_gigabytes) == 768
    assert most_connections(2**20, sixteen_gigabytes) == 65_536
    assert most_connections(2**20, 2**30) == 4096
    assert most_connections(100, sixteen_gigabytes) == 64


def test_a_study_may_do_without_the_disk_that_another_needs(tmp_path: Path) -> None:
    link = Link("127.0.0.1:0", spool=tmp_path / "spool")
    assert link.updates == tmp_path / "spool" / "updates"
    link.keep_updates(on_disk=False)
    assert link.updates is None
    link.keep_updates(on_disk=True)
    assert link.updates == tmp_path / "spool" / "updates"


def test_without_a_folder_updates_are_kept_in_memory() -> None:
    link = Link("127.0.0.1:0")
    link.keep_updates(on_disk=True)
    assert link.updates is None
