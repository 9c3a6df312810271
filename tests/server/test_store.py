"""Flower's object store with large objects in files."""

from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
)

from erosion.server.link.store import SpoolingStore

RUN = 7


def message(value: float = 1.0) -> Message:
    values = np.full(100_000, value, dtype=np.float32)
    return Message(RecordDict({"arrays": ArrayRecord({"a": Array(values)})}), 5, "train")


def filled(store: SpoolingStore, sent: Message) -> None:
    store.preregister(RUN, get_object_tree(sent))
    for name, part in get_all_nested_objects(sent).items():
        store.put(name, part.deflate())


def test_what_is_put_in_comes_out_whether_in_memory_or_in_files(tmp_path: Path) -> None:
    sent = message()
    tree = get_object_tree(sent)
    stores = [SpoolingStore(), SpoolingStore(tmp_path)]
    for store in stores:
        filled(store, sent)
    contents = [
        {i.object_id: s.get(i.object_id) for i in iterate_object_tree(tree)} for s in stores
    ]
    assert contents[0] == contents[1]
    assert stores[0].num_bytes(tree) == stores[1].num_bytes(tree) > 400_000
    (file,) = tmp_path.iterdir()  # the array's only chunk
    assert file.stat().st_size > 400_000


def test_what_two_messages_share_goes_with_the_second(tmp_path: Path) -> None:
    store = SpoolingStore(tmp_path)
    first, second = message(), message()  # the same array, in different envelopes
    second.metadata.__dict__["_dst_node_id"] = 6
    for sent in (first, second):
        filled(store, sent)
    assert len(list(tmp_path.iterdir())) == 1
    store.delete(first.object_id)
    assert all(store.get(part.object_id) for part in iterate_object_tree(get_object_tree(second)))
    store.delete(second.object_id)
    assert not list(tmp_path.iterdir())
    assert len(store) == 0


def test_an_object_whose_round_ended_while_it_was_written_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, sent = SpoolingStore(tmp_path), message()
    store.preregister(RUN, get_object_tree(sent))
    write = Path.write_bytes

    def ends_meanwhile(path: Path, content: bytes) -> int:
        store.delete(sent.object_id)
        return write(path, content)

    monkeypatch.setattr(Path, "write_bytes", ends_meanwhile)
    for name, part in get_all_nested_objects(sent).items():
        if len(content := part.deflate()) > 400_000:
            store.put(name, content)
            assert store.get(name) is None
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_told_to_the_thread_that_can_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, sent = SpoolingStore(tmp_path), message()
    store.preregister(RUN, get_object_tree(sent))
    store.raise_problem()  # there is none yet

    def full(_path: Path, _content: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    parts = {name: part.deflate() for name, part in get_all_nested_objects(sent).items()}
    large = max(parts, key=lambda name: len(parts[name]))
    with pytest.raises(OSError, match="No space"):
        store.put(large, parts[large])
    with pytest.raises(OSError, match="No space"):
        store.raise_problem()
