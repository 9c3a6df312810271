"""Names and spellings that hospitals use for the same thing. Always only proposed."""

# Names of columns as `plain_name` leaves them.
SAME_WORDS: tuple[frozenset[str], ...] = tuple(
    map(
        frozenset,
        (
            (
                "age",
                "alter",
                "ageyears",
                "patientage",
                "alterjahre",
                "edad",
                "eta",
                "ageatadmission",
            ),
            ("sex", "gender", "geschlecht", "sexe", "sesso", "sexo"),
            (
                *("height", "groesse", "grosse", "koerpergroesse", "korpergrosse", "taille"),
                *("heightcm", "estatura", "talla", "altezza"),
            ),
            ("weight", "gewicht", "poids", "peso", "weightkg", "koerpergewicht"),
            ("bmi", "bodymassindex", "imc"),
            (
                *("cholesterol", "chol", "cholesterin", "totalcholesterol", "gesamtcholesterin"),
                *("colesterol", "colesterolo", "cholesteroltotal"),
            ),
            (
                "systolic",
                "sbp",
                "rrsys",
                "trestbps",
                "systolicbp",
                "sysbp",
                "pas",
                "tas",
                "blutdrucksystolisch",
                "systole",
                "bloodpressure",
            ),
            ("diastolic", "dbp", "rrdia", "diastolicbp", "diabp", "pad", "tad", "diastole"),
            (
                *("heartrate", "hr", "pulse", "puls", "herzfrequenz", "frequencecardiaque"),
                *("frecuenciacardiaca", "frequenzacardiaca", "fc"),
            ),
            ("glucose", "glukose", "bloodsugar", "blutzucker", "glycemie", "glu", "bz", "glucosa"),
            ("creatinine", "kreatinin", "crea", "krea", "creatinina"),
            (
                "haemoglobin",
                "hemoglobin",
                "hb",
                "hgb",
                "haemoglobine",
                "hemoglobine",
                "haemoglobinwert",
            ),
            (
                "smoker",
                "smoking",
                "smoke",
                "raucher",
                "fumeur",
                "rauchen",
                "tabac",
                "nikotin",
                "tabaco",
                *("tabagisme", "tabaquismo", "fumador", "fumatore", "fumo"),
                *("raucherstatus", "smokingstatus"),
            ),
            ("diabetes", "diabetic", "dm", "diabetiker", "diabete"),
            (
                "death",
                "dead",
                "died",
                "tod",
                "verstorben",
                "mortality",
                "deces",
                "decede",
                "deceased",
                "exitus",
                *("muerte", "fallecido", "fallecimiento", "decesso", "morte", "todesfall"),
            ),
            ("stage", "stadium", "stade", "grade", "staging"),
            ("platelets", "thrombozyten", "plaquettes", "plt"),
            ("leukocytes", "leukozyten", "leucocytes", "wbc", "whitebloodcells"),
            ("temperature", "temperatur", "temp", "temperatura"),
            ("infarction", "mi", "infarkt", "infarctus", "myocardialinfarction"),
            (
                *("hypertension", "hypertonie", "htn", "hta", "bluthochdruck", "hipertension"),
                "ipertensione",
            ),
            ("sodium", "natrium", "sodio", "na"),
            ("potassium", "kalium", "potasio", "potassio", "k"),
            ("crp", "creactiveprotein", "creaktivesprotein", "pcr", "proteinecreactive"),
            ("urea", "harnstoff", "uree"),
            ("albumin", "albumine", "albumina"),
            (
                *("readmission", "readmitted", "rehospitalisation", "rehospitalization"),
                *("wiederaufnahme", "rehospitalisierung", "reingreso", "riammissione"),
            ),
            (
                *("lengthofstay", "los", "liegedauer", "verweildauer", "aufenthaltsdauer"),
                *("staydays", "dureesejour", "dureedesejour", "estancia", "diasestancia"),
                "degenza",
            ),
            (
                "outcome",
                "ergebnis",
                "result",
                "resultat",
                "target",
                "endpoint",
                "endpunkt",
                "issue",
            ),
        ),
    )
)

# Words in the name of a column of dates.
BIRTH = ("birth", "born", "geb", "gebdat", "geburt", "naiss", "dob", "nacim", "nascita")
BEGIN = (
    "admi",
    "aufnahm",
    "entree",
    "start",
    "begin",
    "ingres",
    "ricover",
    "inclusion",
    "enrol",
    "visit",
)
END = ("discharg", "entlass", "sortie", "end", "exit", "alta", "dimiss", "death", "tod")
DATE = ("date", "datum", "dat", "fecha", "timestamp", "datetime", "zeitpunkt")

# Parts of names of columns, as regular expressions: whom a number is of, what numbers are called,
# and the same in short.
PATIENTS = (
    *("patient(en|in|innen)?", "pat", "pt", "paciente", "paziente", "medicalrecord", "record"),
    *("case", "fall", "subject", "subj", "participant", "teilnehmer", "deelnemer", "chart"),
    *("proband(en)?", "person(en)?", "dossier", "historia(clinica)?", "versicherten", "aufnahme"),
    "opname",
)
NUMBERING = (
    *("id", "nr", "no", "nbr", "num", "number", "nummer", "numero", "key", "kennung", "hash"),
    "identifi(er|ant)",
)
COUNTING = ("nr", "nbr", "numero")  # number of, where more follows
SHORT_KEYS = (
    *("id", "pid", "mrn", "uid", "uuid", "guid", "ssn", "nhs", "ipp", "nip", "nda"),
    *("iep", "nir", "bsn", "nhc", "nss", "ahv", "svnr", "lfd"),
)

# The same of places: what they are called, what is said of them, and whose they are.
PLACES = (
    *("hospital", "hopital", "krankenhaus", "spital", "klinik", "clinic", "clinique", "ospedale"),
    *("ziekenhuis", "centre", "center", "zentrum", "centrum", "centro", "site", "standort"),
    *("locatie", "facility", "institution", "institut", "institute", "einrichtung", "ward"),
    *(
        "klinikum",
        "etablissement",
        "station",
        "abteilung",
        "afdeling",
        "department",
        "dept",
        "service",
    ),
    *("servicio", "reparto"),
)
NAMING = (
    *("id", "nr", "no", "num", "number", "nummer", "numero", "key"),
    *("name", "naam", "nom", "nome", "code", "bezeichnung", "kuerzel", "kurzel", "identifier"),
)
WHOSE_PLACE = (
    *(
        "the",
        "study",
        "treating",
        "admitting",
        "admission",
        "discharge",
        "current",
        "first",
        "recruiting",
    ),
    *("last", "of", "de", "medical", "behandelnde", "behandelndes", "aufnehmende"),
)
WHOSE_NAME = (
    *("patient", "patienten", "pat", "paciente", "paziente", "of", "the", "de", "du", "del", "di"),
    *("des", "der", "attending", "behandelnder"),
)
