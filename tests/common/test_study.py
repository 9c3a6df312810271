"""The study file: the files it accepts, and its messages about those it refuses."""

from pathlib import Path

import pytest

from erosion_common.algorithms import REGISTRY
from erosion_common.errors import StudyError
from erosion_common.settings.names import canonical
from erosion_common.study.sections import REFERENCES, Fold
from erosion_common.study.study import Study, load_study, study_from_json
from tests.support.refusals import refused

TABLE = """
name = "demo"
user = "a"
hospitals = ["a", "b", "c"]
rounds = 30
[task]
kind = "tabular"
target = "outcome"
classes = ["benign", "malignant"]
features = ["age", {name = "sex", categories = [0, 1]}, {name = "bp", range = [50, 250]}]
[model]
name = "mlp"
hidden = [8]
[training]
steps = 5
[arms.weight_erosion]
distance_penalty = 0.02
[arms.fedavg]
[arms.local]
"""
ARMS = TABLE[TABLE.index("[arms.weight_erosion]") :]
IMAGES = (
    TABLE[: TABLE.index("[task]")]
    + '[task]\nkind = "image"\nshape = [1, 28, 28]\nclasses = ["cat", "dog"]\n'
    + TABLE[TABLE.index("[model]") :]
)


def loaded(tmp_path: Path, text: str) -> Study:
    file = tmp_path / "study.toml"
    file.write_text(text, encoding="utf-8")
    return load_study(file)


def refusal(tmp_path: Path, text: str) -> list[str]:
    with pytest.raises(StudyError) as raised:
        loaded(tmp_path, text)
    first, *lines = str(raised.value).splitlines()
    assert first == f"Study file {tmp_path / 'study.toml'}:"
    return [line.removeprefix("  ") for line in lines]


def names(lines: list[str], words: str) -> None:
    """There is one complaint; it begins with the first of the words and has all of them."""
    (said,) = lines
    first, *_ = words.split()
    assert said.startswith(first) or first[0].isdigit(), said
    assert all(word in said for word in words.split()), said


def changed(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1, f"{old!r} is {text.count(old)} times in the example"
    return text.replace(old, new)


# -- Good files --------------------------------------------------------------------------------


def test_a_table_study_is_read(tmp_path: Path) -> None:
    study = loaded(tmp_path, TABLE)
    assert study.hospitals == ("a", "b", "c")
    assert list(study.arms) == ["weight_erosion", "fedavg", "local"]
    assert study.task.num_outputs == 2
    assert study.task.input_shape == (3,)  # age, sex (one 0/1 column), bp
    assert study.comparison == ("weight_erosion", ("local", "ridge", "boosted_trees"))


@pytest.mark.parametrize(
    ("arms", "comparison"),
    [
        (["weight_erosion", "fedavg", "local"], ("weight_erosion", ("local", *REFERENCES))),
        (["local", "fedavg", "weight_erosion"], ("fedavg", ("local", *REFERENCES))),
        (["weight_erosion", "fedavg"], ("weight_erosion", REFERENCES)),
        (["local"], None),
    ],
)
def test_the_comparison_is_the_first_arm_with_local_models(
    tmp_path: Path, arms: list[str], comparison: tuple[str, tuple[str, ...]] | None
) -> None:
    text = TABLE.removesuffix(ARMS) + "".join(f"[arms.{arm}]\n" for arm in arms)
    assert loaded(tmp_path, text).comparison == comparison


def test_a_declared_comparison_is_taken(tmp_path: Path) -> None:
    study = loaded(tmp_path, TABLE + '[evaluation]\ncompare = ["fedavg", "weight_erosion"]\n')
    assert study.comparison == ("fedavg", ("weight_erosion",))
    bare = TABLE.removesuffix(ARMS) + "[arms.fedavg]\n[arms.ditto]\n"
    assert loaded(tmp_path, bare + "[evaluation]\nreferences = []\n").comparison == (
        "fedavg",
        ("ditto",),
    )


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (1, "1"),
        (1.0, "1"),
        (" 1 ", "1"),
        ("1.50", "1.5"),
        ("-0.0", "0"),
        (" benign ", "benign"),
        ("E11.9", "E11.9"),
        (".5", "0.5"),
        ("10.", "10"),
        (1e16, "10000000000000000"),
        # Codes that Python would take for a number.
        *((code, code) for code in ("1E1", "1e5", "1_0", "01", "00", "+1", "1e400", "0x10")),
        *((code, code) for code in ("Infinity", "inf", "-inf", "nan", "٣")),
        # Beyond 2^53 a float would make two codes one.
        ("900000000000207008", "900000000000207008"),
        ("900000000000207009", "900000000000207009"),
    ],
)
def test_codes_are_compared_by_their_value(value: object, code: str) -> None:
    assert canonical(value) == code


# -- Bad files ---------------------------------------------------------------------------------


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    with refused(StudyError, tmp_path / "nowhere.toml"):
        load_study(tmp_path / "nowhere.toml")
    with refused(StudyError, "TOML", "line 5, column 10"):
        loaded(tmp_path, changed(TABLE, "rounds = 30", "rounds = = 30"))
    needed = ["name", "user", "hospitals", "rounds", "task", "model", "training", "arms"]
    assert [line.split()[0] for line in refusal(tmp_path, "")] == needed


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("rounds = 30", "rounds = 0", "rounds"),
        ("rounds = 30", "rounds = 30\nsed = 1", "sed seed"),
        ('user = "a"', 'user = "A B"', "user"),
        ('user = "a"', 'user = "z"', "user z"),
        ('"b", "c"]', '"b", "all"]', "hospitals[2]"),
        ('"b", "c"]', '"b", "b"]', "hospitals b"),
        ('["a", "b", "c"]', "[]", "hospitals"),
        ('["a", "b", "c"]', '["a"]', "federation.quorum"),
        ('kind = "tabular"', 'kind = "table"', "task.kind"),
        ('["benign", "malignant"]', '["benign"]', "task.classes"),
        ('["benign", "malignant"]', '["benign", "benign"]', "task.classes"),
        (
            '[task]\nkind = "tabular"\ntarget = "outcome"\nclasses = ["benign", "malignant"]',
            'evaluation.subgroups.sex = []\n[task]\nkind = "tabular"\ntarget = "outcome"\n'
            'classes = ["a", "b", "c"]',
            "evaluation.subgroups",
        ),
        (
            '["benign", "malignant"]',
            '[{name = "no", values = [0]}, {name = "yes", values = [1, 0.0]}]',
            "task.classes",
        ),
        ('"age"', '"outcome"', "task"),
        ("[50, 250]", "[250, 50]", "task.features[bp].range"),
        ("range = ", "rang = ", "task.features[bp].rang range"),
        ("[0, 1]", "[0]", "task.features[sex].categories"),
        ("[0, 1]", "[0, 0.0]", "task.features[sex].categories"),
        ('name = "mlp"', 'name = "mpl"', "model.name"),
        *(("[8]", f"[{width}]", "model.hidden[0]") for width in (1_000_001, 2**62, 10**19)),
        ("[8]", "[1000000, 1000000]", "1,000,007,000,002 1,000,000,000"),
        ('name = "mlp"\nhidden = [8]', 'name = "mnist_cnn"', "model.name"),
        ("steps = 5", "steps = 5\nepochs = 1", "training"),
        ("steps = 5\n", "", "training"),
        ("steps = 5", 'steps = 5\noptimizer = "adam"\nmomentum = 0.9', "training"),
        (
            "distance_penalty",
            "distance_penalti",
            "arms.weight_erosion.distance_penalti distance_penalty",
        ),
        ("[arms.fedavg]", "[arms.fedavg]\nsize_penalty = 1", "arms.fedavg.size_penalty weighting"),
        ("[arms.fedavg]", "[arms.fedvag]", " ".join(["arms.fedvag.algorithm", *REGISTRY])),
        ("[arms.fedavg]", '[arms."Fed Avg"]\nalgorithm = "fedavg"', "arms.Fed Avg"),
        (ARMS, "[arms]", "arms"),
        *(
            (
                "[arms.fedavg]",
                f"[arms.gems]\npublic_hospital = {name!r}\n[arms.fedavg]",
                "arms.gems public_hospital",
            )
            for name in ("public", "Hospital B")
        ),
        (
            "[training]",
            "[arms.network_gems]\n[[selection.candidates.network_gems]]\npublic_hospital = 'd'\n"
            "[training]",
            "arms.network_gems public_hospital",
        ),
        (
            "[training]",
            '[evaluation]\ncompare = ["fedavg", "ditto"]\n[training]',
            "evaluation.compare",
        ),
        ("[training]", "[federation]\nquorum = 9\n[training]", "federation.quorum"),
        (
            "[arms.fedavg]",
            '[arms.fedavg]\nown_parameters = ["bias"]',
            "arms.fedavg own_parameters 1.bias",
        ),
        ("steps = 5", "steps = 5\nmomentum = 0.9\n[arms.scaffold]", "arms.scaffold"),
        (
            "[training]",
            "[[selection.candidates.ditto]]\nproximal_weight = 1\n[training]",
            "selection.candidates",
        ),
        (
            "[training]",
            "[[selection.candidates.weight_erosion]]\ndistance_penalty = -1\n[training]",
            "selection.candidates.weight_erosion",
        ),
    ],
)
def test_a_bad_table_study_is_refused(tmp_path: Path, old: str, new: str, named: str) -> None:
    names(refusal(tmp_path, changed(TABLE, old, new)), named)


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("rounds = 30", 'rounds = 30\nscaling = "federated"', "scaling"),
        ("[1, 28, 28]", "[2, 28, 28]", "task.shape"),
        ("[1, 28, 28]", "[1, 28]", "task.shape"),
        ("[1, 28, 28]", "[1, 16384, 16384]", "2,147,483,674 1,000,000,000"),
        ("[1, 28, 28]", "[1, 28, 28]\ndeviation = [0]", "task.deviation[0]"),
        ("[1, 28, 28]", "[3, 28, 28]\nmean = [0.5, 0.5]", "task"),
    ],
)
def test_a_bad_image_study_is_refused(tmp_path: Path, old: str, new: str, named: str) -> None:
    names(refusal(tmp_path, changed(IMAGES, old, new)), named)


@pytest.mark.parametrize(
    ("arms", "named"),
    [
        ('["local", "local"]', "arms local"),
        ('[["local"], "fedavg"]', "arms"),
        ('["local", "fed"]', " ".join(["arms[fed].algorithm", *REGISTRY])),
    ],
)
def test_a_list_of_arms_that_is_none_is_refused(tmp_path: Path, arms: str, named: str) -> None:
    text = TABLE.removesuffix(ARMS).replace("rounds = 30", f"rounds = 30\narms = {arms}")
    names(refusal(tmp_path, text), named)


# -- Sending -----------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [TABLE, IMAGES])
def test_a_sent_study_equals_the_original(tmp_path: Path, text: str) -> None:
    study = loaded(tmp_path, text)
    received = study_from_json(study.canonical_json())
    assert received == study
    assert received.digest == study.digest
    assert list(received.arms) == list(study.arms)  # the first arm is the one that is compared
    assert "\n" not in study.canonical_json()


def test_sending_leaves_the_testbed_at_home(tmp_path: Path) -> None:
    bare = loaded(tmp_path, TABLE)
    study = loaded(tmp_path, TABLE + '[testbed]\nsource = "breast-cancer"\n')
    assert study.digest == bare.digest
    assert study_from_json(study.canonical_json()) == bare


def test_every_agreed_value_changes_the_digest(tmp_path: Path) -> None:
    digests = {
        loaded(tmp_path, changed(TABLE, *change)).digest
        for change in (
            ("rounds = 30", "rounds = 30"),
            ("rounds = 30", "rounds = 31"),
            ("rounds = 30", "rounds = 30\nseed = 1"),
            ("0.02", "0.03"),
            ("[8]", "[9]"),
            ("[50, 250]", "[50, 251]"),
            ("[arms.fedavg]\n[arms.local]", "[arms.local]\n[arms.fedavg]"),
        )
    }
    assert len(digests) == 7


def test_a_fold_is_of_its_study_after_being_copied_too(tmp_path: Path) -> None:
    """A site asks for both with every request, so both are made once; a copy makes its own."""
    study = loaded(tmp_path, TABLE)
    first = study.model_copy(update={"fold": Fold(number=0, of=2)})
    assert (first.whole, first.whole.digest) == (study, study.digest)
    longer = first.model_copy(update={"rounds": 31})
    assert (longer.whole.rounds, longer.whole.fold) == (31, None)
    assert len({study.digest, first.digest, longer.digest, longer.whole.digest}) == 4


@pytest.mark.parametrize("text", ["{", "[" * 100_000, "[]", '{"name": "x"}'])
def test_what_is_no_study_is_refused(text: str) -> None:
    with refused(StudyError, "user" if "name" in text else "JSON"):
        study_from_json(text)
