"""Names, spellings and unit factors that hospitals use for the same thing. Always only proposed."""

from collections.abc import Mapping

# Names of columns without case, spaces and marks.
SAME_WORDS: tuple[frozenset[str], ...] = tuple(
    map(
        frozenset,
        (
            ("age", "alter", "ageyears", "patientage", "alterjahre", "edad", "eta"),
            ("sex", "gender", "geschlecht", "sexe", "sesso", "sexo"),
            ("height", "groesse", "größe", "koerpergroesse", "taille", "heightcm"),
            ("weight", "gewicht", "poids", "peso", "weightkg", "koerpergewicht"),
            ("bmi", "bodymassindex"),
            ("cholesterol", "chol", "cholesterin", "totalcholesterol", "gesamtcholesterin"),
            ("systolic", "sbp", "rrsys", "trestbps", "systolicbp", "systole", "bloodpressure"),
            ("diastolic", "dbp", "rrdia", "diastolicbp", "diastole"),
            ("heartrate", "hr", "pulse", "puls", "herzfrequenz"),
            ("glucose", "glukose", "bloodsugar", "blutzucker", "glycemie"),
            ("creatinine", "kreatinin", "crea", "krea", "creatinina"),
            ("haemoglobin", "hemoglobin", "hb", "hgb", "haemoglobine"),
            ("smoker", "smoking", "raucher", "fumeur", "rauchen"),
            ("diabetes", "diabetic", "dm", "diabetiker"),
            ("death", "dead", "died", "tod", "verstorben", "mortality"),
            ("outcome", "ergebnis", "result", "resultat", "target"),
        ),
    )
)

# Spellings of a category, without case.
SAME_VALUES: tuple[frozenset[str], ...] = tuple(
    map(
        frozenset,
        (
            ("yes", "y", "ja", "j", "oui", "si", "sì", "true", "1", "present", "positive", "pos"),
            ("no", "n", "nein", "non", "false", "0", "absent", "negative", "neg"),
            ("male", "m", "man", "männlich", "maennlich", "homme", "h", "masculin", "maschio"),
            ("female", "f", "w", "woman", "weiblich", "femme", "feminin", "femmina"),
        ),
    )
)

# Words in a column's name -> factors between units that are in use for it, both ways.
FACTORS: Mapping[tuple[str, ...], tuple[float, ...]] = {
    ("chol", "ldl", "hdl"): (38.67, 1 / 38.67),  # mmol/l, mg/dl
    ("triglycer",): (88.57, 1 / 88.57),
    ("gluc", "gluk", "sugar", "zucker"): (18.016, 1 / 18.016),
    ("creat", "krea"): (88.42, 1 / 88.42),  # mg/dl, umol/l
    ("bilirubin",): (17.1, 1 / 17.1),
    ("urea", "harnstoff"): (6.006, 1 / 6.006),
    ("haemoglobin", "hemoglobin", "hb", "hgb"): (10.0, 0.1, 1.611, 1 / 1.611),
    ("height", "groesse", "größe", "taille"): (100.0, 0.01, 2.54, 30.48),  # m, inch, foot to cm
    ("weight", "gewicht", "poids"): (0.4536, 2.2046, 0.001, 1000.0),  # pound, gram
    ("age", "alter"): (1 / 12, 12.0, 1 / 365.25),  # months, days
    ("crp", "albumin", "calcium"): (10.0, 0.1, 4.008, 1 / 4.008),
}
