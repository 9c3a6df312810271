"""Downloads: only the known file is kept, and without internet people learn what to do."""

import hashlib
import socket
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from erosion.simulation import download
from erosion.simulation.download import DATA_SETS, DataSet, fetch, fetch_data_set
from erosion_common.errors import ErosionError, LinkError, SiteError

CONTENT = b"63.0,1.0,1.0\n"
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_arguments: object) -> None:
        pass


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "*")


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[str]:
    """The address of a small archive on loopback, with one file."""
    (tmp_path / "archive").mkdir()
    (tmp_path / "archive" / "a.data").write_bytes(CONTENT)
    handler = partial(_Quiet, directory=str(tmp_path / "archive"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def nobody() -> str:
    """An address where nothing listens."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{unused.getsockname()[1]}"


def test_a_file_is_fetched_into_a_folder_of_the_data_sets_name(
    tmp_path: Path, archive: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data_set = DataSet("a set", archive, {"a.data": SHA256})
    monkeypatch.setattr(download, "DATA_SETS", {"small": data_set})
    folder = fetch("small", tmp_path / "new" / "data")
    assert folder == tmp_path / "new" / "data" / "small"
    assert [path.name for path in folder.iterdir()] == ["a.data"]
    assert (folder / "a.data").read_bytes() == CONTENT


def test_a_file_with_another_checksum_is_refused_and_not_kept(tmp_path: Path, archive: str) -> None:
    with pytest.raises(LinkError, match="is not the known file") as caught:
        fetch_data_set(DataSet("a set", archive, {"a.data": "0" * 64}), tmp_path / "out")
    assert str(tmp_path / "out") in str(caught.value)
    assert list((tmp_path / "out").iterdir()) == []


def test_a_damaged_file_is_replaced(tmp_path: Path, archive: str) -> None:
    (tmp_path / "a.data").write_bytes(b"half")
    fetch_data_set(DataSet("a set", archive, {"a.data": SHA256}), tmp_path)
    assert (tmp_path / "a.data").read_bytes() == CONTENT


def test_without_internet_the_message_says_which_files_to_put_where(
    tmp_path: Path, nobody: str
) -> None:
    data_set = DataSet("a set", nobody, {"a.data": SHA256, "b.data": SHA256})
    with pytest.raises(LinkError, match=r"no answer from 127\.0\.0\.1") as caught:
        fetch_data_set(data_set, tmp_path / "out")
    message = str(caught.value)
    assert f"put them into {tmp_path / 'out'}" in message
    assert f"{nobody}/a.data" in message
    assert f"{nobody}/b.data" in message
    assert "Traceback" not in message
    assert caught.value.__suppress_context__


def test_files_put_there_by_hand_need_no_internet(tmp_path: Path, nobody: str) -> None:
    (tmp_path / "a.data").write_bytes(CONTENT)
    fetch_data_set(DataSet("a set", nobody, {"a.data": SHA256}), tmp_path)


def test_a_file_that_the_server_no_longer_has_is_told(tmp_path: Path, archive: str) -> None:
    with pytest.raises(
        LinkError, match=r"gone\.data could not be downloaded: the server answered 404"
    ):
        fetch_data_set(DataSet("a set", archive, {"gone.data": SHA256}), tmp_path)


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SiteError, match="cannot be made"):
        fetch("mnist", tmp_path / "file")


def test_an_unknown_name_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ErosionError, match="choose one of heart-disease, mnist"):
        fetch("lung", tmp_path)


def test_every_known_checksum_is_one_over_an_encrypted_link() -> None:
    for data_set in DATA_SETS.values():
        assert data_set.url.startswith("https://")
        assert all(len(bytes.fromhex(sha256)) == 32 for sha256 in data_set.sha256.values())
