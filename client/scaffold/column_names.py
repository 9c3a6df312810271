"""What a column's name says: that it numbers patients, names a place, holds dates or measures."""

import re
import unicodedata

from erosion.client.scaffold.known_units import QUANTITIES, mentions, plain_name
from erosion.client.scaffold.known_words import (
    BIRTH,
    COUNTING,
    DATE,
    NAMING,
    NUMBERING,
    PATIENTS,
    PLACES,
    SAME_WORDS,
    SHORT_KEYS,
    WHOSE_NAME,
    WHOSE_PLACE,
)

_PATIENTS, _NUMBERING, _PLACES, _NAMING = map("|".join, (PATIENTS, NUMBERING, PLACES, NAMING))
_PATIENT_KEY = re.compile(
    rf"({_PATIENTS})({_NUMBERING})|(n|no|nr|nbr|num|numero|id)(de|du|del|di)?"
    r"(patient|pat|dossier|sejour|paciente|paziente|historia(clinica)?)"
)
_ALONE = re.compile(
    r"pseudonyme?|identifiante?|identifier|identificador|matricule|codicefiscale|patientcode"
    r"|((code|codigo|codice)(de|du|del|di)?)?(patient(en)?|pat|paciente|paziente)"
    r"|participant|subject|proband|teilnehmer|deelnemer"
)
_NUMBER_OF = re.compile(rf"{'|'.join(SHORT_KEYS)}|.+(nummer|nr|kennung)")
_MAY_NUMBER = re.compile(
    rf"no|number|case|fall|record|index|row|unnamed|column|patient|{'|'.join(COUNTING)}"
)
_PERSON = re.compile(
    r"(patient(en)?|last|first|middle|maiden|sur|family|given|full|nach|vor|familien|geburts|achter"
    r"|voor)?na(me?|am)\d?|(pre)?nom(famille|naissance|usuel)?|nombres?|apellidos?|(cog)?nome"
    r"|(name)?(physician|doctor|surgeon|(haus|ober)?(arzt|arztin)|chirurg|operateur|medecin|medico"
    r"|cirujano)(name)?"
)
_PLACE = re.compile(rf"({_PLACES})(s?({_NAMING}))?")  # "wards" are counted
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
    words = words_of(name)
    ends_so = bool(words) and words[-1] in COUNTING
    return is_patient_key(name) or ends_so or any(map(_NUMBER_OF.fullmatch, words))


def is_id(name: str) -> bool:
    """Whether it says that, or may: patient, index, row."""
    return is_key(name) or any(map(_MAY_NUMBER.fullmatch, words_of(name)))


def is_person(name: str) -> bool:
    """Whether it says that it holds the names of patients or doctors."""
    words = [word for word in words_of(name) if word not in (*WHOSE_NAME, *WHOSE_PLACE)]
    return _PERSON.fullmatch("".join(words)) is not None


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
