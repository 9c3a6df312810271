"""Why a column of a table is no feature."""

from collections.abc import Mapping

from erosion.client.scaffold.column_names import is_person, is_place
from erosion.client.scaffold.column_profile import Kind, Profile
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
    if profile.kind == "date" and not profile.date_formats:
        return "it seems to hold dates as numbers of days or seconds (write them as dates)"
    if profile.kind == "text" and is_person(profile.name):
        return NAMES
    if profile.kind == "text" and profile.values:
        return CODES_OF_MANY
    return WHY[profile.kind]
