"""What a cell's figures depend on besides its own settings, and how that differs today."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field
from functools import cached_property, lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from erosion.sources import source_of
from erosion_client.site_file import Limits
from erosion_common.settings.base import Settings
from erosion_common.study.study import Study

SHIPPED = "scikit-learn"  # carries the data set: nothing is downloaded

DATA_FILES: Mapping[str, tuple[str, ...]] = {  # below the data folder
    "breast-cancer": (f"{SHIPPED}/breast_cancer.csv",),
    "cifar10": (
        "cifar10/cifar10_jpeg_train.npz",
        "cifar10/cifar10_jpeg_test.npz",
        "cifar10/cifar10_subset.npz",
    ),
    "diabetes": (f"{SHIPPED}/diabetes_data_raw.csv.gz", f"{SHIPPED}/diabetes_target.csv.gz"),
    "diabetes-130": ("diabetes-130/diabetic_data.csv.gz",),
    "ham10000": ("ham10000/ham10000_28x28.npz",),
    "heart-disease": (
        "heart-disease/processed.cleveland.data",
        "heart-disease/processed.hungarian.data",
        "heart-disease/processed.switzerland.data",
        "heart-disease/processed.va.data",
    ),
    "mnist": (
        "mnist/train-images-idx3-ubyte.gz",
        "mnist/train-labels-idx1-ubyte.gz",
        "mnist/t10k-images-idx3-ubyte.gz",
        "mnist/t10k-labels-idx1-ubyte.gz",
    ),
    "tcga-brca": ("tcga-brca/brca.csv", "tcga-brca/train_test_split.csv"),
    "titanic": ("titanic/titanic3.csv",),
}


def data_hashes(data_sets: Iterable[str], data_dir: Path | None) -> dict[str, str]:
    """SHA-256 of each file of the data sets that is there, hexadecimal, by its place."""
    found = {}
    for name in (file for data_set in data_sets for file in DATA_FILES[data_set]):
        folder, _, file = name.partition("/")
        if folder == SHIPPED:
            path = Path(str(files("sklearn.datasets.data") / file))
        elif data_dir is None:
            continue
        else:
            path = data_dir / name
        if path.is_file():
            state = path.stat()
            found[name] = _hash(path, state.st_mtime_ns, state.st_size)
    return found


@lru_cache(maxsize=64)
def _hash(path: Path, _changed: int, _size: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _every_cell(_config: Mapping[str, Any]) -> bool:
    return True


def _patients_with_several_rows(config: Mapping[str, Any]) -> bool:
    """Return if the user has some; equal rows count as one patient's."""
    study, user = config.get("study"), config.get("user")
    return (
        user == "va"
        or (study == "titanic" and user != "age-unknown")
        or (study == "ham10000" and user != "vidir_molemax")
    )


def _trains_in_the_heart_study(config: Mapping[str, Any]) -> bool:
    """Return if its hospitals do: two of them have rows that nearly agree, whoever the user is."""
    of_heart = config.get("user") in ("cleveland", "hungary", "switzerland", "va")
    return of_heart or config.get("study") == "heart-disease"


@dataclass(frozen=True, slots=True)
class Change:
    """One change of the figures."""

    reason: str  # one line, as a page quotes it
    concerns: Callable[[Mapping[str, Any]], bool] = _every_cell  # by a cell's own settings


NUMERICS: Sequence[Change] = (
    Change("cells kept what they were made with"),
    Change(
        "the noise of a simulation followed from seed, hospital and round",
        lambda config: bool(config.get("privacy")),
    ),
    Change(
        "all rows of a patient drew one lot and gave one prediction", _patients_with_several_rows
    ),
    Change(
        "rows that nearly agree counted as two patients",
        lambda config: _trains_in_the_heart_study(config) or _patients_with_several_rows(config),
    ),
)


Values = Mapping[str, Any]  # what JSON can hold
_MOST_NAMED = 3  # keys that a reason names


@dataclass(frozen=True)
class Resolved:
    """A study or a rule with every default; a study also with the limits of its hospitals."""

    full: Values
    chosen: Values  # the part of it that differs from the defaults

    @cached_property
    def flat(self) -> Mapping[str, str]:
        """Each key of all that it says, with its value."""
        return dict(_flat(self.full))

    @cached_property
    def given(self) -> Set[str]:
        """The keys that differ from their defaults."""
        return dict(_flat(self.chosen)).keys()

    @classmethod
    def of(cls, settings: Settings) -> "Resolved":
        """Return all that it says, and all that it leaves to the program. Raises StudyError."""
        full, chosen = (
            settings.model_dump(mode="json", exclude_defaults=defaults)
            for defaults in (False, True)
        )
        if isinstance(settings, Study):
            parts: dict[str, Settings] = {"limits": Limits()}
            if settings.testbed is not None:
                parts["source"] = source_of(settings)
            for name, part in parts.items():
                full[name] = part.model_dump(mode="json")
                chosen[name] = part.model_dump(mode="json", exclude_defaults=True)
        return cls(full, chosen)


@dataclass(frozen=True)
class Basis:
    """The settings, the data and the program of a cell."""

    settings: Sequence[Resolved] = ()
    data: Mapping[str, str] = field(default_factory=dict)  # file -> SHA-256
    # How many changes of the figures the program had.
    numerics: int = field(default_factory=lambda: len(NUMERICS))

    @classmethod
    def read(cls, raw: Values) -> "Basis":
        """From a file's line. Raises KeyError, TypeError."""
        settings = [Resolved(dict(each["full"]), dict(each["chosen"])) for each in raw["settings"]]
        return cls(settings, dict(raw["data"]), int(raw["numerics"]))

    @cached_property
    def values(self) -> Values:
        """For a file's line."""
        return asdict(self)

    @cached_property
    def digest(self) -> str:
        """First 16 hexadecimal digits of the SHA-256."""
        return digest_of(self.values)

    def stale(self, today: "Basis", config: Values) -> str:
        """Return why a cell with this basis would differ today; "" where it would not."""
        if self.numerics == 0:  # nobody can say what else differs
            return f"made before {NUMERICS[0].reason}"
        reasons = [
            f"made before {change.reason}"
            for change in NUMERICS[self.numerics : today.numerics]
            if change.concerns(config)
        ]
        if len(self.settings) != len(today.settings):
            reasons.append("made with other studies or rules")
        else:
            pairs = zip(self.settings, today.settings, strict=True)
            changed = [text for then, now in pairs for text in _differences(then, now)]
            more = ", ..." if len(changed) > _MOST_NAMED else ""
            if changed:
                reasons.append(f"made with {', '.join(changed[:_MOST_NAMED])}{more}")
        both = self.data.keys() & today.data.keys()  # a page is drawn where no data are, too
        if files := sorted(name for name in both if self.data[name] != today.data[name]):
            reasons.append(f"made from another {', '.join(files)}")
        return "; ".join(reasons)


def digest_of(values: Values) -> str:
    """First 16 hexadecimal digits of the SHA-256 of values as JSON."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def _differences(then: Resolved, now: Resolved) -> Iterator[str]:
    """Return every key with another value today.

    A key that one program has and the other lacks counts where it was given a value: left at its
    default it changes nothing, or else the change of the figures stands in `NUMERICS`.
    """
    was, is_now = then.flat, now.flat
    if was == is_now:
        return
    given = then.given | now.given
    for key in sorted(was.keys() | is_now.keys()):
        if key in was and key in is_now:
            if was[key] != is_now[key]:
                yield f"{key} = {_brief(was[key])} (today {_brief(is_now[key])})"
        elif key in given:
            yield (
                f"{key} = {_brief(was[key])} (today without)"
                if key in was
                else (f"no {key} (today {_brief(is_now[key])})")
            )


def _flat(values: object, place: str = "") -> Iterator[tuple[str, str]]:
    """Every key with its value, and every table with the mark of one."""
    if isinstance(values, Mapping):
        yield place, "a table"
        for key, value in values.items():
            yield from _flat(value, f"{place}.{key}" if place else str(key))
    elif isinstance(values, list) and any(isinstance(value, Mapping) for value in values):
        yield from _flat({str(number): value for number, value in enumerate(values)}, place)
    else:
        yield place, json.dumps(values, sort_keys=True)


def _brief(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:40]}..."
