"""All observers of a run, isolated from it: one that fails is reported once and dropped."""

import logging
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from erosion.common.errors import ErosionError
from erosion.server.output.events import ObserverDropped, RunEvent
from erosion.server.output.observer import Observer
from erosion.server.output.plain_text import printable

logger = logging.getLogger("erosion.output")


class Observers:
    """Tells each of them, in their order. What lasts is not theirs: the journal, the checkpoints
    and the result are written by the run itself, whose errors do end it.
    """

    def __init__(self, observers: Mapping[str, Observer]) -> None:
        """`observers` by the names that people know them by."""
        self._observers = dict(observers)

    def __enter__(self) -> Self:
        """Ready to observe."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close every observer, also after an error or Ctrl-C."""
        for name, observer in list(self._observers.items()):
            try:
                observer.close()
            except Exception as trouble:  # noqa: BLE001 - whatever an observer does wrong
                self._drop(name, trouble)

    def add(self, name: str, observer: Observer) -> None:
        """From now on, tell this one too."""
        self._observers[name] = observer

    def notify(self, event: RunEvent) -> None:
        """Tell everybody; raises nothing that an observer raises."""
        for name, observer in list(self._observers.items()):
            if name not in self._observers:
                continue  # dropped meanwhile, by what it made of another's dropping
            try:
                observer.notify(event)
            except Exception as problem:  # noqa: BLE001 - whatever an observer does wrong
                self._drop(name, problem)

    def _drop(self, name: str, problem: Exception) -> None:
        observer = self._observers.pop(name)
        reason = printable(in_words(problem))
        logger.warning("The output %s failed and is left out from now on: %s", name, reason)
        self.notify(ObserverDropped(name, reason))
        try:
            observer.close()
        except Exception as again:  # noqa: BLE001 - it has been reported
            logger.debug("closing the output %s: %s", name, again)


def in_words(problem: Exception) -> str:
    """A sentence of ours as it is; of another's exception also the kind."""
    if isinstance(problem, ErosionError):
        return str(problem)
    return f"{type(problem).__name__}: {problem}"
