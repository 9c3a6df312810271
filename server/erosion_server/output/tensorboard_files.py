"""TensorBoard: a folder for each arm of a run, with the figures of every round as they come.

A resumed run adds a file to each, and TensorBoard shows them as one curve.
"""

import secrets
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from erosion_common.rounds.events import ArmStarted, RoundFinished
from erosion_common.support.software import install_command
from erosion_server.output.events import RunEvent, RunFinished, StudyStarted
from erosion_server.output.observers import Observer
from erosion_server.output.round_facts import Figure, figures_of, final_figures_of
from erosion_server.run.run_folder import RunFolder


def open_output(where: str) -> Observer:
    """`where` is TensorBoard's --logdir. Raises ValueError."""
    if not where:
        raise ValueError("takes a folder, the --logdir of TensorBoard: tensorboard=FOLDER")
    try:
        import tensorboardX  # noqa: F401 - imported now, so that a missing one is reported at once
    except ModuleNotFoundError:
        raise ValueError(
            f"needs the package tensorboardX: {install_command('tensorboard')}"
        ) from None
    folder = Path(where).expanduser().resolve()  # absolute: "s3:..." would be sent elsewhere
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise ValueError(f"cannot write to {folder} ({problem.strerror})") from None
    return TensorboardFiles(folder)


class TensorboardFiles:
    """Writes whole rounds; an error of the disk drops the output."""

    def __init__(self, folder: Path) -> None:
        """Each run gets a folder of its name below `folder`."""
        self._folder, self._run = folder, folder
        self._writers: dict[str, Any] = {}  # by arm or local reference

    def notify(self, event: RunEvent) -> None:
        """Write a round's figures, and the final ones."""
        match event:
            case StudyStarted(_, _, run_folder):
                self.close()
                self._run = self._folder / RunFolder(run_folder).run.replace("/", "_")
            case ArmStarted(arm, _, False):
                self._write(arm, ())
            case RoundFinished(record, False):
                self._write(record.arm, figures_of(record))
            case RunFinished(result):
                for name, figure in final_figures_of(result):
                    self._write(name, [figure])

    def close(self) -> None:
        """Close the files."""
        for writer in self._writers.values():
            writer.close()
        self._writers = {}

    def _write(self, name: str, figures: Iterable[Figure]) -> None:
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.summary import scalar

        if (writer := self._writers.get(name)) is None:
            folder = self._run / name
            folder.mkdir(parents=True, exist_ok=True)
            suffix = f".{secrets.token_hex(4)}"  # begun in the same second, they have one name
            writer = self._writers[name] = EventsWriter(str(folder / "events"), suffix)
        for step, _, what, hospital, value in figures:
            tag = "/".join(filter(None, (what, hospital)))
            event = Event(wall_time=time.time(), step=step, summary=scalar(tag, value))
            writer.write_event(event)
        writer.flush()
