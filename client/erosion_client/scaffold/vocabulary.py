"""The meaning of column names, by `vocabulary.toml`: quantities, units, keys, places, dates."""

import math
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from erosion_client import scaffold
from erosion_client.dataset.column_values import UnitChange
from erosion_client.dataset.single_column import distinct, quantiles_of
from erosion_common.support.text import significant, without_accents


def words_in(file: str) -> dict[str, Any]:
    """Read a list of words from the file next to the code."""
    return tomllib.loads(files(scaffold).joinpath(file).read_text(encoding="utf-8"))


_WORDS = words_in("vocabulary.toml")
BIRTH, BEGIN, END, DATE = (_WORDS["dates"][key] for key in ("birth", "begin", "end", "date"))
_KEYS, _PLACE_WORDS = _WORDS["keys"], _WORDS["places"]


class _Halves(NamedTuple):
    """Values on both sides of the widest gap."""

    below: float  # their median
    above: float
    gap: float  # between all but a few on each side
    cut: float
    share_below: float  # of the rows
    are_alike_in_width: bool  # by their middle halves


To = tuple[float, float]  # factor and offset to the quantity's first unit


@dataclass(frozen=True, slots=True)
class MixedUnits:
    """Two distributions in one column that a change of unit would merge."""

    change: UnitChange  # from the unit of the smaller values to that of the larger
    cut: float  # lies between them
    share_below: float  # of the rows
    unlike: float  # how far apart both middles are in one unit; of logarithms for a factor
    is_named: bool  # whether the column's name says the quantity; else the others stay in its range

    @property
    def main_is_below(self) -> bool:
        """Whether most rows are in the unit of the smaller values."""
        return self.share_below > 0.5

    def __str__(self) -> str:
        share = round(100 * min(self.share_below, 1 - self.share_below))
        which = "above" if self.main_is_below else "below"
        return (
            f"{share} % of the values lie {which} {significant(self.cut)}, and would fit the others"
            f" in another unit (x {unit_text(self.change)})"
        )


@dataclass(frozen=True)
class Quantity:
    """A measured quantity, by words in a column's name, and its units."""

    words: tuple[str, ...]
    units: Mapping[str, To]

    @cached_property
    def changes(self) -> tuple[UnitChange, ...]:
        """From each unit to each other one."""
        return tuple(_between(self, "", ""))


QUANTITIES = tuple(
    Quantity(tuple(found["words"]), {name: (to[0], to[1]) for name, to in found["units"].items()})
    for found in _WORDS["quantities"]
)
SAME_UNITS: Mapping[str, str] = _WORDS["same_units"]
FEWEST_MIXED = 20  # rows needed to see two distributions in one
LEAST_MIXED = 0.03  # of the rows, and no fewer than three
LEAST_MIXED_TIME = 0.15  # the same for ages and durations: infants among adults are patients, too
FEWEST_DISTINCT = 4  # values on each side
LEAST_FACTOR = 2.0  # kPa and cmHg are nearer than one patient is to another
APART = 0.25  # of the distance between two units that lies between their values
UNLIKE = 0.15  # of that distance, by which both middles may differ in one unit; patients differ
# The same where the name says no quantity: any factor is near a unit, and many columns have a tail.
UNLIKE_UNNAMED = 0.1  # of logarithms
LEAST_MIXED_UNNAMED = 0.1
LEAST_FACTOR_UNNAMED = 5.0
SHORT = 3  # letters of a word that may be part of many others
IN_HEADER = re.compile(r"[(\[]\s*([^)\]]+?)\s*[)\]]\s*$")


def header_unit(name: str) -> str:
    """Return the unit that a column's name ends with, in brackets, as written; "" without one."""
    found = IN_HEADER.search(name)
    return found[1] if found else ""


def plain_name(name: str) -> str:
    """Return a column's name without its unit, case, accents, spaces and marks."""
    bare = IN_HEADER.sub("", name)
    return re.sub(r"[\W_]+", "", without_accents(bare.casefold()))


SAME_WORDS = tuple(frozenset(map(plain_name, words)) for words in _WORDS["same"])


def mentions(name: str, words: Iterable[str]) -> bool:
    """Return whether a column's name has one of the words; short ones only whole: no "dosage"."""
    whole, plain = _tokens(name)
    return any(word in whole if len(word) <= SHORT else word in plain for word in words)


@lru_cache(maxsize=256)  # a name is looked at for each quantity
def _tokens(name: str) -> tuple[frozenset[str], str]:
    bare = without_accents(IN_HEADER.sub("", name).casefold())
    plain = plain_name(name)
    return frozenset((*re.findall(r"[^\W\d_]+\d*[^\W\d_]*", bare), plain)), plain


def plain_unit(unit: str) -> str:
    """Return a unit as `QUANTITIES` writes it."""
    text = unit.casefold().replace("µ", "u").replace("μ", "u").replace("°", "").replace(" ", "")
    text = text.replace("litre", "l").replace("liter", "l").strip(".")
    return SAME_UNITS.get(text, text)


def changes(name: str, from_unit: str, to_unit: str) -> list[UnitChange]:
    """Return changes of unit that a column of this name may need; units are "" where unknown."""
    wanted, given = plain_unit(to_unit), plain_unit(from_unit)
    if wanted and wanted == given:
        return []
    found: dict[tuple[float, float], UnitChange] = {}
    for quantity in QUANTITIES:
        if mentions(name, quantity.words):
            for change in _between(quantity, given, wanted):
                found.setdefault((change.factor, change.offset), change)
    return list(found.values())


def change_of_header(column: str, local: str, unit: str) -> UnitChange | None:
    """Return the change from the unit in a column's header to the study's; None if not known."""
    given, wanted = plain_unit(header_unit(local)), plain_unit(unit or header_unit(column))
    for quantity in QUANTITIES:
        if {given, wanted} <= quantity.units.keys() and mentions(column, quantity.words):
            return next(_between(quantity, given, wanted), None)
    return None


def mixed_units(
    name: str, values: NDArray[np.float64], counts: NDArray[np.int64]
) -> MixedUnits | None:
    """Return the two units that a column seems to be in; None where it is in one.

    `values`: (n,), and in how many rows each is, `counts`: (n,).
    """
    x, rows = distinct(values, counts)
    if rows.sum() < FEWEST_MIXED or len(x) < 2:
        return None
    named = [quantity for quantity in QUANTITIES if mentions(name, quantity.words)]
    logarithms, up_to = np.log(x) if x[0] > 0 else None, np.cumsum(rows)

    @cache
    def split(is_ratio: bool, least: float) -> _Halves | None:
        """Split once by scale; halves of a column of no known quantity must be alike in width."""
        parts = _split(logarithms if is_ratio else x, up_to, least) if named or is_ratio else None
        return parts if parts is None or named or parts.are_alike_in_width else None

    found: list[MixedUnits] = []
    for quantity in named or QUANTITIES:
        least = LEAST_MIXED_TIME if "days" in quantity.units else LEAST_MIXED
        least = least if named else max(least, LEAST_MIXED_UNNAMED)
        for change in quantity.changes:
            parts = split(change.offset == 0, least)
            if parts and (one := _apart_by(change, parts, is_named=bool(named))):
                found.append(one)
    return min(found, key=lambda one: one.unlike, default=None)


def _apart_by(change: UnitChange, parts: _Halves, *, is_named: bool) -> MixedUnits | None:
    """Return the change that would merge two distributions; `parts` of logarithms for a factor."""
    is_ratio = change.offset == 0
    if is_ratio and change.factor < (LEAST_FACTOR if is_named else LEAST_FACTOR_UNNAMED):
        return None
    moved = change.factor * parts.below + change.offset
    if is_ratio:
        moved = parts.below + math.log(change.factor)
    way = moved - parts.below
    unlike = abs(parts.above - moved)
    most = UNLIKE * (min(way, 2.0) if is_ratio else way) if is_named else UNLIKE_UNNAMED
    if way <= 0 or parts.gap < APART * way or unlike > most:
        return None
    cut = math.exp(parts.cut) if is_ratio else parts.cut
    return MixedUnits(change, cut, parts.share_below, unlike, is_named)


def _split(x: NDArray[np.float64] | None, up_to: NDArray[np.int64], least: float) -> _Halves | None:
    """Return sorted values in two, at the widest gap with enough of their rows on each side.

    None where there are too few, or so few distinct ones that they are codes, or doses. `up_to`:
    (n,) number of rows up to each value.
    """
    if x is None:
        return None
    fewest = max(3, math.ceil(least * up_to[-1]))
    first = int(np.searchsorted(up_to, fewest))
    last = int(np.searchsorted(up_to, up_to[-1] - fewest, side="right"))
    gaps = np.diff(x[first : last + 1])
    cut = first + int(gaps.argmax()) + 1 if gaps.any() else 0
    if min(cut, len(x) - cut) < FEWEST_DISTINCT:
        return None
    shares = (0.02, 0.25, 0.5, 0.75, 0.98)
    one, other = (
        quantiles_of(x[:cut], up_to[:cut], shares),
        quantiles_of(x[cut:], up_to[cut:] - up_to[cut - 1], shares),
    )
    widths = one[3] - one[1], other[3] - other[1]
    return _Halves(
        below=float(one[2]),
        above=float(other[2]),
        gap=float(other[0] - one[4]),
        cut=float(x[cut - 1] + x[cut]) / 2,
        share_below=float(up_to[cut - 1] / up_to[-1]),
        are_alike_in_width=min(widths) > 0.5 * max(widths) > 0,
    )


def unit_text(unit: UnitChange) -> str:
    """Return a change of unit as a site file has it."""
    if not unit.offset:
        return f"{unit.factor:.6g}"
    return f"{{ factor = {unit.factor:.6g}, offset = {unit.offset:.6g} }}"


def _between(quantity: Quantity, given: str, wanted: str) -> Iterator[UnitChange]:
    for one, (factor, offset) in quantity.units.items():
        for other, (its_factor, its_offset) in quantity.units.items():
            fits_given = given not in quantity.units or given == one
            fits_wanted = wanted not in quantity.units or wanted == other
            if one != other and fits_given and fits_wanted:
                yield UnitChange(
                    factor=factor / its_factor, offset=(offset - its_offset) / its_factor
                )


_COUNTING = _KEYS["counting"]
_WITH_PLACE, _WITH_NAME = _PLACE_WORDS["with_place"], _PLACE_WORDS["with_name"]
_PATIENTS, _NUMBERING = ("|".join(_KEYS[key]) for key in ("patients", "numbering"))
_CODES, _WITH_CODE = ("|".join(_WORDS["codes"][key]) for key in ("called", "with"))
_PLACES, _NAMING = ("|".join(_PLACE_WORDS[key]) for key in ("called", "naming"))
_NUMBERED, _OF_THEIR_OWN = ("|".join(_KEYS[key]) for key in ("numbered", "alone"))
_PATIENT_KEY = re.compile(
    rf"({_PATIENTS})({_NUMBERING})|({_NUMBERING}|n|code?)(de|du|del|di)?({_NUMBERED})"
)
_ALONE = re.compile(
    rf"{_OF_THEIR_OWN}|((code|codigo|codice)(de|du|del|di)?)?(patient(en)?|pat|paciente|paziente)"
)
_NUMBER_OF = re.compile(rf"{'|'.join(_KEYS['short'])}|.+(nummer|nr|kennung)")
_MAY_NUMBER = re.compile(
    rf"no|number|case|fall|record|index|row|unnamed|column|patient|{'|'.join(_COUNTING)}"
)
_PERSON = re.compile(
    r"(patient(en)?|last|first|middle|maiden|sur|family|given|full|nach|vor|familien|geburts|achter"
    r"|voor)?na(me?|am)\d?|(pre)?nom(famille|naissance|usuel)?|nombres?|apellidos?|(cog)?nome"
    r"|(name)?(physician|doctor|surgeon|(haus|ober)?(arzt|arztin)|chirurg|operateur|medecin|medico"
    r"|cirujano)(name)?|" + "|".join(_WORDS["people"]["names"])
)
_PLACE = re.compile(rf"({_PLACES})(s?({_NAMING}))?")  # "wards" are counted
_CODE = re.compile(rf"({_WITH_CODE})*({_CODES})({_WITH_CODE})*\d*")
_MEASURED = tuple(word for quantity in QUANTITIES for word in quantity.words)


def words_of(name: str) -> list[str]:
    """Return small letters without accents: "PatientID" and "patient_id" are patient, id.

    Words of other alphabets are kept as they are.
    """
    marked = name.replace("ß", "ss").replace("°", "o ").replace("#", " no ")
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", without_accents(marked))
    return re.findall(r"[^\W_]+", apart.casefold())


def is_patient_key(name: str) -> bool:
    """Return whether it fully names a key of patients or cases: PatientID, Fallnummer."""
    words = words_of(name)
    ends = ("".join(words[first:]) for first in range(len(words)))
    return any(map(_PATIENT_KEY.fullmatch, ends)) or _ALONE.fullmatch("".join(words)) is not None


def is_key(name: str) -> bool:
    """Return whether it does, or is short for a number: MRN, pid, lesion_id."""
    words = words_of(name)
    ends_so = bool(words) and words[-1] in _COUNTING
    return is_patient_key(name) or ends_so or any(map(_NUMBER_OF.fullmatch, words))


def is_id(name: str) -> bool:
    """Return whether it names a key, or may: patient, index, row."""
    return is_key(name) or any(map(_MAY_NUMBER.fullmatch, words_of(name)))


def is_person(name: str) -> bool:
    """Return whether it names patients or doctors."""
    words = [word for word in words_of(name) if word not in (*_WITH_NAME, *_WITH_PLACE)]
    return _PERSON.fullmatch("".join(words)) is not None


def is_place(name: str) -> bool:
    """Return whether it names just a hospital, a ward or a centre: no "hospital_days"."""
    words = [word for word in words_of(name) if word not in _WITH_PLACE]
    return _PLACE.fullmatch("".join(words)) is not None


def is_coded(name: str) -> bool:
    """Return whether it names codes of diagnoses, procedures, drugs or addresses: diag_1, ZIP."""
    return _CODE.fullmatch("".join(words_of(name))) is not None


def is_date(name: str) -> bool:
    """Return whether it names dates."""
    return mentions(name, (*DATE, *BIRTH))


def is_measurement(name: str) -> bool:
    """Return whether it names a known quantity."""
    return mentions(name, _MEASURED) or any(plain_name(name) in words for words in SAME_WORDS)
