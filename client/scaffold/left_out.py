"""Why a column of a table is no feature."""

from collections.abc import Mapping

from erosion.client.scaffold.column_names import is_person, is_place
from erosion.client.scaffold.column_profile import MEASURED, NUMBER, Kind, Profile
from erosion.client.scaffold.patient_key import is_numbered

WHY: Mapping[Kind, str] = {
    "identifier": "it seems to tell patients apart (patient under [data] of the site file)",
    "date": "it holds dates (make an age of them: [data.derive] of the site file)",
    "text": "it holds free text, or too many categories",
    "constant": "all its values are the same",
    "empty": "it has no values",
    "number": "it holds numbers",
    "category": "it has too many categories",
}
PLAINLY_NONE = (WHY["text"], WHY["constant"], WHY["empty"])  # said in the file alone
NUMBERED = (
    "it seems by its values to number patients or rows: whole numbers, nearly all different (if it"
    " is a measurement, add it to features, with its unit)"
)
NAMES = "it seems to hold people's names (if it holds none, add it to features)"
CODES_OF_MANY = (
    "it seems to hold codes, too many for categories (if it is a number, add it to features)"
)

ONE_OR_NONE = (
    "it has one value, and rows without any (if these mean no, as where only a yes is marked, write"
    " that into the table)"
)
WITH_UNITS = (
    "it seems to hold numbers with a unit or a second number beside them (export it as numbers"
    " alone)"
)
NUMBERS_AND_WORDS = (
    "it holds numbers, and words in many rows, such as {words} (write what they mean as numbers, or"
    " leave these cells empty)"
)
MOSTLY = 0.9  # of a column's rows


def why_no_feature(profile: Profile) -> str:
    """Why a column is left out; "" where it is none that a model should not read."""
    if profile.kind not in ("empty", "constant", "identifier", "date") and is_place(profile.name):
        return (
            "it seems to name a hospital, ward or centre (if several hospitals are in this table,"
            " make a table of each; if it is something else, add it to features)"
        )
    if profile.kind in ("number", "category"):
        return NUMBERED if is_numbered(profile) else ""
    return why_not(profile)


def why_not(profile: Profile) -> str:
    """Why a model cannot read or predict a column that holds what this one does."""
    words = [text for text in profile.counts if not NUMBER.fullmatch(text)]
    if profile.kind == "date" and not profile.date_formats and words:
        some = ", ".join(map(repr, words[:3]))
        return f"it seems to hold dates in several forms, such as {some} (write all in one form)"
    if profile.kind == "date" and not profile.date_formats:
        return "it seems to hold dates as numbers of days or seconds (write them as dates)"
    if profile.kind == "text" and is_person(profile.name):
        return NAMES
    if profile.kind == "text" and profile.values:
        return CODES_OF_MANY
    if profile.kind == "text" and _begin_with_numbers(profile.counts):
        return WITH_UNITS
    rows = sum(profile.counts[text] for text in words)
    if profile.kind == "text" and 2 * rows < sum(profile.counts.values()):
        return NUMBERS_AND_WORDS.format(words=", ".join(map(repr, words[:3])))
    if profile.kind == "constant" and profile.num_missing:
        return ONE_OR_NONE
    return WHY[profile.kind]


def _begin_with_numbers(counts: Mapping[str, int]) -> bool:
    """Whether nearly all rows do, as 45 % and 120/80."""
    num = sum(count for text, count in counts.items() if MEASURED.match(text))
    return num >= MOSTLY * sum(counts.values())
