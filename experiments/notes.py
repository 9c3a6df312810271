"""What hospitals note about their data, said once however many runs they take part in."""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from erosion.common.support.text import shown


def _on_standard_error(note: str) -> None:
    print(shown(note), file=sys.stderr)


class NotesOnce(logging.Handler):
    """Says each sentence of the program's log when it comes first."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__()
        self._say, self._said = say, set[str]()

    def emit(self, record: logging.LogRecord) -> None:
        """Say what was logged in this process."""
        self.tell(record.getMessage())

    def tell(self, note: str) -> None:
        """Say it, unless it was said."""
        if note not in self._said:
            self._said.add(note)
            self._say(note)


@contextmanager
def notes_once(say: Callable[[str], None] = _on_standard_error) -> Iterator[NotesOnce]:
    """Say what the program logs meanwhile, each sentence once."""
    log, notes = logging.getLogger("erosion"), NotesOnce(say)
    log.addHandler(notes)
    try:
        yield notes
    finally:
        log.removeHandler(notes)
