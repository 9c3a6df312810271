"""What a column's name says: that it numbers patients, names a place, holds dates or measures."""

import re
import unicodedata

from erosion.client.scaffold.known_units import QUANTITIES, mentions, plain_name
from erosion.client.scaffold.known_words import (
    BIRTH,
    DATE,
    NAMING,
    NUMBERING,
    PATIENTS,
    PLACES,
    SAME_WORDS,
    SHORT_KEYS,
    WHOSE_PLACE,
)

_PATIENTS, _NUMBERING, _PLACES, _NAMING = map("|".join, (PATIENTS, NUMBERING, PLACES, NAMING))
_PATIENT_KEY = re.compile(
    rf"({_PATIENTS})({_NUMBERING})|(n|no|num|numero|id)(de|du|del)?(patient|dossier|paciente|paziente)"
)
_ALONE = re.compile(
    r"pseudonyme?|identifiante?|identifier|identificador|matricule|codicefiscale|patientcode"
)
_NUMBER_OF = re.compile(rf"{'|'.join(SHORT_KEYS)}|.+(nummer|nr|kennung)|numero")
_MAY_NUMBER = re.compile(r"no|number|patient|case|fall|record|index|row|unnamed|column")
_PERSON = re.compile(
    r"(patient(en)?|last|first|sur|family|given|full|nach|vor|familien|achter|voor)na(me?|am)|prenom"
)
_PLACE = re.compile(rf"({_PLACES})s?({_NAMING})?")
_MEASURED = tuple(word for quantity in QUANTITIES for word in quantity.words)


def words_of(name: str) -> list[str]:
    """Small letters without accents: "PatientID" and "patient_id" are patient, id."""
    marked = name.replace("ß", "ss").replace("°", "o ").replace("#", " no ")
    letters = unicodedata.normalize("NFKD", marked)
    bare = "".join(c for c in letters if not unicodedata.combining(c))
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", bare)
    return re.findall(r"[a-z0-9]+", apart.casefold())


def is_patient_key(name: str) -> bool:
    """Whether it says in full that it tells patients or cases apart: PatientID, Fallnummer."""
    words = words_of(name)
    ends = ("".join(words[first:]) for first in range(len(words)))
    return any(map(_PATIENT_KEY.fullmatch, ends)) or _ALONE.fullmatch("".join(words)) is not None


def is_key(name: str) -> bool:
    """Whether it says that, or in short that it numbers something: MRN, pid, lesion_id."""
    return is_patient_key(name) or any(map(_NUMBER_OF.fullmatch, words_of(name)))


def is_id(name: str) -> bool:
    """Whether it says that, or may: patient, index, row."""
    return is_key(name) or any(map(_MAY_NUMBER.fullmatch, words_of(name)))


def is_person(name: str) -> bool:
    """Whether it says that it holds people's names."""
    return _PERSON.fullmatch("".join(words_of(name))) is not None


def is_place(name: str) -> bool:
    """Whether it says nothing but a hospital, a ward or a centre: no "hospital_days"."""
    words = [word for word in words_of(name) if word not in WHOSE_PLACE]
    return _PLACE.fullmatch("".join(words)) is not None


def is_date(name: str) -> bool:
    """Whether it says that it holds dates."""
    return mentions(name, (*DATE, *BIRTH))


def is_measurement(name: str) -> bool:
    """Whether it says a quantity that is known."""
    return mentions(name, _MEASURED) or any(plain_name(name) in words for words in SAME_WORDS)
