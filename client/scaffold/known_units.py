"""Units that hospitals use for the same quantity, and the changes between them. Always proposed."""

import math
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from erosion.client.dataset.preparation import UnitChange

_Parts = tuple[NDArray[np.float64], NDArray[np.float64]]  # smaller and larger values, sorted
To = tuple[float, float]  # factor and offset to the quantity's first unit


@dataclass(frozen=True, slots=True)
class MixedUnits:
    """Two distributions in one column that a change of unit would make one."""

    change: UnitChange  # from the unit of the smaller values to that of the larger
    cut: float  # lies between them
    share_below: float  # of the rows

    @property
    def main_is_below(self) -> bool:
        """Whether most rows are in the unit of the smaller values."""
        return self.share_below > 0.5

    def __str__(self) -> str:
        share = round(100 * min(self.share_below, 1 - self.share_below))
        which = "above" if self.main_is_below else "below"
        return (
            f"{share} % of the values lie {which} {self.cut:.3g}, and would fit the others in"
            f" another unit (x {unit_text(self.change)})"
        )


@dataclass(frozen=True, slots=True)
class Quantity:
    """What is measured, by words in a column's name, and its units."""

    words: tuple[str, ...]
    units: Mapping[str, To]


QUANTITIES = (
    Quantity(("hba1c", "glycated"), {"%": (1, 0), "mmol/mol": (0.09148, 2.152)}),
    Quantity(
        ("chol", "colest", "ldl", "hdl"), {"mg/dl": (1, 0), "mmol/l": (38.67, 0), "g/l": (100, 0)}
    ),
    Quantity(
        ("triglyc", "triglyz", "triglic"), {"mg/dl": (1, 0), "mmol/l": (88.57, 0), "g/l": (100, 0)}
    ),
    Quantity(
        ("gluc", "gluk", "glyc", "sugar", "zucker"),
        {"mg/dl": (1, 0), "mmol/l": (18.016, 0), "g/l": (100, 0)},
    ),
    Quantity(("creat", "krea"), {"mg/dl": (1, 0), "umol/l": (1 / 88.42, 0), "mmol/l": (11.31, 0)}),
    Quantity(("bilirrubin", "bilirubin"), {"mg/dl": (1, 0), "umol/l": (1 / 17.1, 0)}),
    Quantity(("urate", "uricacid", "harnsaure"), {"mg/dl": (1, 0), "umol/l": (1 / 59.48, 0)}),
    Quantity(("urea", "harnstoff", "uree"), {"mg/dl": (1, 0), "mmol/l": (6.006, 0)}),
    Quantity(("lactat", "laktat"), {"mmol/l": (1, 0), "mg/dl": (0.111, 0)}),
    Quantity(
        ("hemoglobin", "haemoglobin", "hamoglobin", "emoglobin", "hb", "hgb"),
        {"g/dl": (1, 0), "g/l": (0.1, 0), "mmol/l": (1.611, 0)},
    ),
    Quantity(("albumin",), {"g/dl": (1, 0), "g/l": (0.1, 0)}),
    Quantity(("calcium", "kalzium"), {"mg/dl": (1, 0), "mmol/l": (4.008, 0)}),
    Quantity(("magnesium",), {"mg/dl": (1, 0), "mmol/l": (2.431, 0)}),
    Quantity(("phosph",), {"mg/dl": (1, 0), "mmol/l": (3.097, 0)}),
    Quantity(("crp", "creactive"), {"mg/l": (1, 0), "mg/dl": (10, 0)}),
    Quantity(("vitamind", "25oh"), {"ng/ml": (1, 0), "nmol/l": (0.4006, 0)}),
    Quantity(("troponin",), {"ng/l": (1, 0), "ng/ml": (1000, 0), "ug/l": (1000, 0)}),
    Quantity(("platelet", "thrombo", "plaquette"), {"10^9/l": (1, 0), "/ul": (0.001, 0)}),
    Quantity(("leuko", "leuco", "wbc", "whiteblood"), {"10^9/l": (1, 0), "/ul": (0.001, 0)}),
    Quantity(("temp",), {"c": (1, 0), "f": (5 / 9, -160 / 9), "k": (1, -273.15)}),
    Quantity(
        ("pressure", "systol", "diastol", "sbp", "dbp", "rrsys", "rrdia", "blutdruck", "tension"),
        {"mmhg": (1, 0), "kpa": (7.5006, 0), "cmhg": (10, 0)},
    ),
    Quantity(
        ("height", "groesse", "grosse", "taille", "waist"),
        {"cm": (1, 0), "m": (100, 0), "in": (2.54, 0), "ft": (30.48, 0), "mm": (0.1, 0)},
    ),
    Quantity(
        ("weight", "gewicht", "poids", "peso"),
        {"kg": (1, 0), "lb": (0.4536, 0), "g": (0.001, 0)},
    ),
    Quantity(
        ("age", "alter", "edad"),
        {"years": (1, 0), "months": (1 / 12, 0), "weeks": (7 / 365.25, 0), "days": (1 / 365.25, 0)},
    ),
    Quantity(
        ("stay", "los", "followup", "time", "duration", "dauer", "survival"),
        {
            "days": (1, 0),
            "hours": (1 / 24, 0),
            "weeks": (7, 0),
            "months": (30.44, 0),
            "years": (365.25, 0),
        },
    ),
)
SAME_UNITS = {
    "year": "years", "yr": "years", "yrs": "years", "y": "years", "jahre": "years", "ans": "years",
    "month": "months", "monate": "months", "mois": "months", "day": "days", "d": "days",
    "tage": "days", "jours": "days", "hour": "hours", "h": "hours", "lbs": "lb", "pounds": "lb",
    "inch": "in", "inches": "in", "zoll": "in", "feet": "ft", "celsius": "c", "fahrenheit": "f",
    "kelvin": "k", "percent": "%", "micromol/l": "umol/l", "mcmol/l": "umol/l", "g/100ml": "g/dl",
    "mg/100ml": "mg/dl", "g%": "g/dl", "mg%": "mg/dl", "10e9/l": "10^9/l", "109/l": "10^9/l",
    "g/nl": "10^9/l", "1/ul": "/ul", "1000/ul": "10^9/l", "tsd/ul": "10^9/l",
}  # fmt: skip
FEWEST_MIXED = 20  # rows, to see two distributions in one
LEAST_MIXED = 0.03  # of the rows, and no fewer than three
LEAST_MIXED_TIME = 0.15  # the same of ages and durations: infants among adults are patients, too
APART = 0.25  # of the way between two units, that lies between their values
UNLIKE = 0.15  # of that way, that the middles of both may differ by, in one unit; patients differ
SHORT = 3  # letters of a word that may be part of many others
IN_HEADER = re.compile(r"[(\[]\s*([^)\]]+?)\s*[)\]]\s*$")


def header_unit(name: str) -> str:
    """The unit that a column's name ends with, in brackets, as it is written; "" without one."""
    found = IN_HEADER.search(name)
    return found[1] if found else ""


def plain_name(name: str) -> str:
    """A column's name without its unit, case, accents, spaces and marks."""
    bare = IN_HEADER.sub("", name).replace("ß", "ss")
    letters = unicodedata.normalize("NFKD", bare.casefold())
    return re.sub(r"[\W_]+", "", "".join(c for c in letters if not unicodedata.combining(c)))


def mentions(name: str, words: Iterable[str]) -> bool:
    """Whether a column's name has one of the words in it; short ones by themselves: no "dosage"."""
    letters = unicodedata.normalize("NFKD", IN_HEADER.sub("", name).casefold().replace("ß", "ss"))
    bare = "".join(c for c in letters if not unicodedata.combining(c))
    tokens = re.findall(r"[a-z]+\d*[a-z]*", bare)
    plain = plain_name(name)
    return any(word in (*tokens, plain) if len(word) <= SHORT else word in plain for word in words)


def plain_unit(unit: str) -> str:
    """A unit as `QUANTITIES` writes it."""
    text = unit.casefold().replace("µ", "u").replace("μ", "u").replace("°", "").replace(" ", "")
    text = text.replace("litre", "l").replace("liter", "l").strip(".")
    return SAME_UNITS.get(text, text)


def changes(name: str, from_unit: str, to_unit: str) -> list[UnitChange]:
    """Changes of unit that a column of this name may need; units are "" where they are not known.

    Where both are known it is the change between them, or none.
    """
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
    """From the unit in a local column's header to the study's; None where either is not known.

    `unit`: the study's, "" where its column's name may say it.
    """
    given, wanted = plain_unit(header_unit(local)), plain_unit(unit or header_unit(column))
    for quantity in QUANTITIES:
        if mentions(column, quantity.words) and {given, wanted} <= quantity.units.keys():
            return next(_between(quantity, given, wanted), None)
    return None


def mixed_units(name: str, values: NDArray[np.float64]) -> MixedUnits | None:
    """The two units that a column of rows (n,) seems to be in; None where it is in one.

    Asked of a quantity that is known by the column's name, where few or no values lie between.
    """
    rows = np.sort(values)
    if len(rows) < FEWEST_MIXED or rows[0] == rows[-1]:
        return None
    for quantity in QUANTITIES:
        if mentions(name, quantity.words):
            least = LEAST_MIXED_TIME if "days" in quantity.units else LEAST_MIXED
            parts = [_parts(rows, least), _parts(np.log(rows), least) if rows[0] > 0 else None]
            for change in _between(quantity, "", ""):
                found = _apart_by(change, parts[change.offset == 0])
                if found is not None:
                    return found
    return None


def _apart_by(change: UnitChange, parts: _Parts | None) -> MixedUnits | None:
    """What a change of unit would make one distribution; `parts` of logarithms for a factor."""
    if parts is None:
        return None
    is_ratio = change.offset == 0
    below, above = parts
    middle = float(np.median(below))
    moved = change.factor * middle + change.offset
    if is_ratio:
        moved = middle + math.log(change.factor)
    way, gap = moved - middle, np.percentile(above, 2) - np.percentile(below, 98)
    unlike = abs(float(np.median(above)) - moved)
    if way <= 0 or gap < APART * way or unlike > UNLIKE * (min(way, 2.0) if is_ratio else way):
        return None
    cut = float(below[-1] + above[0]) / 2
    share = len(below) / (len(below) + len(above))
    return MixedUnits(change, math.exp(cut) if is_ratio else cut, share)


def _parts(rows: NDArray[np.float64], least: float) -> _Parts | None:
    """Sorted values on both sides of the widest gap that leaves enough of them on each."""
    fewest = max(3, math.ceil(least * len(rows)))
    gaps = np.diff(rows)[fewest - 1 : len(rows) - fewest]
    if not len(gaps):
        return None
    cut = int(gaps.argmax()) + fewest
    return rows[:cut], rows[cut:]


def unit_text(unit: UnitChange) -> str:
    """A change of unit as a site file has it."""
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
