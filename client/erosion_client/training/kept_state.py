"""State that a hospital keeps between an arm's rounds: personal models, control variates.

It never leaves the site, outlives the program, and belongs to one run of one study. For the last
round, the start of each exchange is kept with the result of the last one: an exchange that is
repeated starts from the same state. A round that ruined the model is undone: the hospitals
recognise it by getting the same parameters again, and return to the earlier state.

Once a run keeps something in another fold of its study, its arms' state in the one before is
removed. Of the rest the MOST_FILES newest files stay, those of other trials of the run being
removed first; the run's first patients stay.
"""

import contextlib
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from erosion_common.aggregation.vectors import is_finite
from erosion_common.errors import CheckpointError, NotReady
from erosion_common.formats.tensor_file import (
    metadata,
    read_header,
    read_with_header,
    remove_unfinished_tensors,
    write_tensors,
)
from erosion_common.learning.local_work import Tensors
from erosion_common.protocol.compression import Packed, sent_arrays
from erosion_common.support.files import remove_unfinished, replacing, written_at

VERSION = 1
MOST_FILES = 100  # arms of other runs than the current one, and of its other trials
# In place of an arm, which has no brackets in its name; it holds predictions of all folds:
ACROSS_FOLDS = "(cross-fitted)"
OF_A_RUN = "(patients)"  # likewise; the patients with which the run began

_OF_A_STUDY = "[0-9a-f]" * 16  # a folder of ours; others are next to them


@dataclass(frozen=True, slots=True)
class StateKey:
    """What the state belongs to."""

    study: str  # digest
    arm: str
    run: str
    whole: str  # digest of the study that `study` is a fold of


@dataclass(frozen=True, slots=True, order=True)
class Moment:
    """An exchange of a run."""

    round: int  # from 1
    exchange: int = 1  # its place in the round, from 1


@dataclass(frozen=True, slots=True, eq=False)
class _KeptRound:
    place: StateKey
    round: int = 0
    befores: Mapping[int, Tensors] = field(default_factory=dict)  # by exchange, ascending; 0: of
    # the first round on the same parameters, if that was an earlier one
    after: Tensors = field(default_factory=dict)  # the last of them
    received: str = ""  # digest of the parameters that it started from
    earlier: str = ""  # and of those before them

    @property
    def start(self) -> Tensors:
        """The state kept when those parameters arrived."""
        return next(iter(self.befores.values()), {})


class KeptState:
    """The state of every study and arm that this hospital takes part in."""

    def __init__(self, folder: Path | None) -> None:
        """Keep files in `folder`; None: in memory, and lost with the program."""
        self._folder = folder
        self._in_memory: dict[tuple[str, str], _KeptRound] = {}  # by study and arm

    def before(
        self, place: StateKey, moment: Moment, parameters: Tensor | Packed | None = None
    ) -> Tensors:
        """Return the start of that exchange: nothing in a run's first.

        Raises CheckpointError, NotReady. `parameters` (dim,): those in its request; None: none.
        """
        last = self._last(place, moment)
        if last.round < moment.round:
            is_undone = last.earlier and _digest(parameters) == last.earlier
            return last.start if is_undone else last.after
        asked_before = (e for e in last.befores if e >= moment.exchange)
        again = next(asked_before, None)
        return last.after if again is None else last.befores[again]

    def keep(
        self,
        place: StateKey,
        moment: Moment,
        before: Tensors,
        after: Tensors,
        parameters: Tensor | Packed | None = None,
    ) -> None:
        """Note that the exchange went from `before` to `after`. Raises NotReady.

        Where a value of `after` is not finite, nothing changes: no later round could repair it.
        """
        before, after = _on_cpu(before), _on_cpu(after)
        if not all(is_finite(t.flatten()) for t in after.values() if t.is_floating_point()):
            after = before
        if not before and not after:
            return  # most methods keep nothing
        last = self._last(place, moment)
        is_first, is_same_round = last.round == 0, last.round == moment.round
        received = _digest(parameters) or last.received
        befores = {e: t for e, t in last.befores.items() if is_same_round and e < moment.exchange}
        if received == last.received:
            earlier = last.earlier
            if earlier and not is_same_round:  # a skipped round moved nothing
                befores = {0: last.start}
        else:
            earlier = "" if received == last.earlier else last.received
            befores.pop(0, None)
        befores[moment.exchange] = before
        last = _KeptRound(place, moment.round, befores, after, received, earlier)
        if self._folder is None:
            self._in_memory[place.study, place.arm] = last
            return
        path = self._path(self._folder, place)
        try:
            remove_unfinished_tensors(path)
            with replacing(path, mode=0o600) as file:
                write_tensors(file, *_encoded(last))
            if is_first:
                _prune(self._folder, place)
        except OSError as problem:
            raise NotReady(
                f"what a study keeps here cannot be written ({problem.strerror})",
                where=str(path),
                remedy="Make room, or the folder writable (compute.state); the site continues.",
            ) from None

    def last(self, place: StateKey, moment: Moment) -> Moment | None:
        """Return the run's last kept exchange, up to that round; None: nothing is kept.

        Raises CheckpointError, NotReady.
        """
        if self._folder is None:
            last = self._last(place, moment)
            return Moment(last.round, [*last.befores][-1]) if last.round else None
        path = self._path(self._folder, place)
        with _readable(path):
            if not path.exists():
                return None
            header = read_header(path)
            last_kept = Moment(int(header["round"]), int(header["exchanges"][-1]))
            is_of_run = _place_in(header).run == place.run and last_kept.round <= moment.round
            return last_kept if is_of_run else None

    def _last(self, place: StateKey, moment: Moment) -> _KeptRound:
        """Return the run's last round up to that moment; without one, a round that kept nothing."""
        last = self._load(place)
        is_of_run = last.place.run == place.run and last.round <= moment.round
        return last if is_of_run else _KeptRound(place)

    def _load(self, place: StateKey) -> _KeptRound:
        nothing = _KeptRound(place)
        if self._folder is None:
            return self._in_memory.get((place.study, place.arm), nothing)
        path = self._path(self._folder, place)
        with _readable(path):
            return _decoded(path) if path.exists() else nothing

    @staticmethod
    def _path(folder: Path, place: StateKey) -> Path:
        return folder / place.study[:16] / f"{place.arm}.safetensors"


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as problem:  # which may pass, and deleting the file would end the run
        raise NotReady(
            f"what a study keeps here cannot be read ({problem.strerror})",
            where=str(path),
            remedy="Have the disk and the file's permissions checked; the site continues.",
        ) from None
    except (IndexError, KeyError, TypeError, ValueError) as problem:
        raise CheckpointError(
            f"{path} cannot be read ({problem})",
            remedy="Delete it and start a new run, unless it can be brought back from a backup.",
        ) from None


def _prune(folder: Path, begun: StateKey) -> None:
    """Remove what is not needed now that `begun` is, so that the disk does not fill."""
    others = []
    for path in folder.glob(f"{_OF_A_STUDY}/*.safetensors"):
        place = None
        with contextlib.suppress(OSError, KeyError, TypeError, ValueError):
            place = _place_in(read_header(path))
        is_of_run = place is not None and place.run == begun.run
        if place is not None and is_of_run and place.arm == OF_A_RUN:
            continue
        if place is None or not is_of_run or place.whole != begun.whole:
            others.append((not is_of_run, written_at(path), path))
        elif place.study != begun.study and ACROSS_FOLDS not in (place.arm, begun.arm):
            _remove(path)
    for _, _, path in sorted(others)[:-MOST_FILES]:
        _remove(path)


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
    remove_unfinished(path)
    with contextlib.suppress(OSError):  # another arm's exists
        path.parent.rmdir()


def _place_in(header: Mapping[str, Any]) -> StateKey:
    study, arm, run = header["place"]
    return StateKey(study, arm, run, header["whole"])


def _encoded(last: _KeptRound) -> tuple[dict[str, Tensor], dict[str, str]]:
    kept = {f"before {exchange}": tensors for exchange, tensors in last.befores.items()}
    tensors = {
        f"{when}/{name}": tensor
        for when, tensors in {**kept, "after": last.after}.items()
        for name, tensor in tensors.items()
    }
    place = last.place
    header = {
        "version": VERSION,
        "place": [place.study, place.arm, place.run],
        "whole": place.whole,
        "round": last.round,
        "exchanges": list(last.befores),
        "parameters": [last.received, last.earlier],
    }
    return tensors, metadata(header, tensors)


def _decoded(path: Path) -> _KeptRound:
    header, tensors = read_with_header(path)
    if header["version"] != VERSION:
        raise ValueError(f"version {header['version']}, expected {VERSION}")

    def of(when: str) -> Tensors:
        prefix = f"{when}/"
        return {k.removeprefix(prefix): t for k, t in tensors.items() if k.startswith(prefix)}

    befores = {int(exchange): of(f"before {exchange}") for exchange in header["exchanges"]}
    received, earlier = header["parameters"]
    place, number = _place_in(header), int(header["round"])
    return _KeptRound(place, number, befores, of("after"), received, earlier)


def _digest(parameters: Tensor | Packed | None) -> str:
    if parameters is None or not len(parameters):
        return ""
    found = hashlib.sha256()
    for part in sent_arrays(parameters).values():
        found.update(part.detach().cpu().contiguous().numpy().data)
    return found.hexdigest()


def _on_cpu(tensors: Tensors) -> Tensors:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
