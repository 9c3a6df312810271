"""Flower's object store, with large objects in files where memory is short."""

from pathlib import Path

from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore

LARGE_BYTES = 64 * 2**10  # an object from here on goes to a file


class SpoolingStore(InMemoryObjectStore):
    """Flower's store in memory; given a folder, objects of LARGE_BYTES and more lie there."""

    def __init__(self, folder: Path | None = None) -> None:
        """`folder` is this store's alone, made before the first object; None: all in memory."""
        super().__init__()
        self._folder = folder
        self._sizes: dict[str, int] = {}  # of objects in files
        self._problem: OSError | None = None

    def put(self, object_id: str, object_content: bytes) -> None:
        """Take an object in. Raises what Flower raises, and OSError."""
        super().put(object_id, object_content)
        if self._folder is None or len(object_content) < LARGE_BYTES:
            return
        path = self._folder / object_id  # a SHA-256 hash: `put` has compared it with the content
        try:
            path.write_bytes(object_content)
        except OSError as problem:
            self._problem = problem
            raise
        with self.lock_store:
            entry = self.store.get(object_id)
            if entry is None:  # its round has ended meanwhile
                path.unlink(missing_ok=True)
                return
            self._sizes[object_id] = len(object_content)
            entry.content = b""

    def get(self, object_id: str) -> bytes | None:
        """An object; empty where it has not come yet, None where nobody waits for it."""
        with self.lock_store:
            content = super().get(object_id)
            in_file = object_id in self._sizes
        if not in_file or self._folder is None:
            return content
        try:
            return (self._folder / object_id).read_bytes()
        except FileNotFoundError:  # deleted by another thread
            return None

    def content(self, object_id: str) -> bytes | Path:
        """An object, or the file that holds it; empty where it is not here."""
        with self.lock_store:
            if self._folder is not None and object_id in self._sizes:
                return self._folder / object_id
            return super().get(object_id) or b""

    def delete(self, object_id: str) -> None:
        """Drop an object and those that only it refers to."""
        with self.lock_store:
            super().delete(object_id)  # which comes back here for the others
            if object_id not in self.store and self._sizes.pop(object_id, None) is not None:
                assert self._folder is not None
                (self._folder / object_id).unlink(missing_ok=True)

    def num_bytes(self, tree: ObjectTree) -> int:
        """Size of a message's objects that are here."""
        with self.lock_store:
            return sum(
                self._sizes.get(part.object_id) or len(self.store[part.object_id].content)
                for part in iterate_object_tree(tree)
                if part.object_id in self.store
            )

    def raise_problem(self) -> None:
        """Raise the OSError that kept an object out, in the thread that can end the run."""
        if self._problem is not None:
            raise self._problem
