"""The testbed's hospitals and their patients, and the messages about a wrong study."""

import csv
import gzip
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer

from erosion.sources import REGISTRY, Data, make_hospitals, source
from erosion.sources.diabetes_130 import AS_THEY_ARE, FILE, FOLDER, NUMBERS
from erosion.sources.flamby import COLUMNS, FILES
from erosion.sources.mnist import (
    PATTERNS,
    PartitionName,
    PatternName,
    partition,
    read_mnist,
    user_test_images,
)
from erosion.sources.shipped import HOSPITALS, NUM_PATIENTS, BreastCancer
from erosion_common.errors import DataError, StudyError
from erosion_common.study.study import Study, load_study
from erosion_common.study.study import Testbed as OwnTable
from erosion_common.tasks.inputs import TabularTask
from experiments.papers.mnist import TEST_COUNTS, commonest_share
from tests.support.patience import PATIENCE

STUDIES = Path(__file__).parents[2] / "erosion" / "studies"
TRAIN_COUNTS = (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)  # MNIST, digits 0-9


@pytest.fixture
def data_dir() -> Path:
    if "EROSION_DATA" not in os.environ:
        pytest.skip("needs the downloaded data sets: set EROSION_DATA to their folder")
    return Path(os.environ["EROSION_DATA"])


def study(name: str, **options: Any) -> Study:
    """A study that comes with the program, with other options for its source."""
    found = load_study(STUDIES / f"{name}.toml")
    assert found.testbed is not None
    testbed = found.testbed.model_copy(update={"options": options})
    return found.model_copy(update={"testbed": testbed})


def table(file: Data) -> list[dict[str, str]]:
    with Path(file["path"]).open(newline="") as lines:
        return list(csv.DictReader(lines))


def digits(counts: Sequence[int]) -> NDArray[np.int64]:
    """Labels with so many of each digit, mixed."""
    return np.random.default_rng(0).permutation(np.repeat(np.arange(10), counts))


# -- every source ----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(STUDIES.glob("*.toml")), ids=lambda path: path.stem)
def test_every_study_that_comes_with_the_program_loads_and_names_a_source(path: Path) -> None:
    found = load_study(path)
    assert found.name == path.stem
    assert found.testbed is not None
    assert found.testbed.source in REGISTRY
    assert found.comparison is not None
    assert found.comparison[0] in set(found.arms) - {"local"}
    assert "local" in found.comparison[1]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"testbed": None}, "[testbed]"),
        ({"testbed": OwnTable(source="lung")}, "'lung'"),
        ({"hospitals": ("home", "elsewhere")}, "elsewhere"),
    ],
)
def test_a_study_that_no_source_can_serve_is_refused(
    tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    wrong = study("breast-cancer").model_copy(update=changes)
    with pytest.raises(StudyError) as caught:
        make_hospitals(wrong, tmp_path, None)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hme": 100}, "hme is not a known key; did you mean home"),
        ({"home": 3}, "home = 3; it must be 10 or more"),
        ({"home": 400}, "leave -51 of 569 patients"),
    ],
)
def test_a_wrong_option_is_named_with_its_remedy(
    tmp_path: Path, options: dict[str, int], message: str
) -> None:
    with pytest.raises(StudyError, match=message):
        make_hospitals(study("breast-cancer", **options), tmp_path, None)


def test_a_shipped_study_s_data_are_made_without_libraries_for_tables(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from erosion.sources import make_hospitals;"
        "from erosion.simulation.testbed import study_path;"
        "from erosion_common.study.study import load_study;"
        "[make_hospitals(load_study(study_path(n)), Path(sys.argv[1]), None)"
        " for n in ('breast-cancer', 'diabetes-progression')];"
        "print({'sklearn', 'scipy', 'pandas'} & {*sys.modules})"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout == "set()\n"


# -- breast cancer ---------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1, 2**40])
def test_every_patient_belongs_to_exactly_one_hospital(seed: int) -> None:
    parts = BreastCancer().split(seed)
    assert tuple(parts) == HOSPITALS
    assert sorted(np.concatenate(list(parts.values())).tolist()) == list(range(NUM_PATIENTS))


def test_the_options_are_numbers_of_patients() -> None:
    parts = BreastCancer(home=100, alike=50, miscoded=60).split(0)
    assert [len(parts[name]) for name in ("home", "alike", "miscoded")] == [100, 50, 60]
    assert len(parts["small-tumours"]) - len(parts["large-tumours"]) in (0, 1)


def test_the_same_seed_gives_the_same_files_and_another_seed_others(tmp_path: Path) -> None:
    def contents(name: str, **options: int) -> list[bytes]:
        files = make_hospitals(study("breast-cancer", **options), tmp_path / name, None)
        return [Path(file["path"]).read_bytes() for file in files.values()]

    first = contents("first")
    assert contents("again") == first
    assert contents("study-seed", split_seed=0) == first  # the study's own seed is 0
    assert contents("other", split_seed=1) != first


def test_labels_are_swapped_at_the_miscoded_hospital_and_nowhere_else(tmp_path: Path) -> None:
    known = load_breast_cancer()
    truth = {
        tuple(row): ("malignant", "benign")[target]  # scikit-learn codes malignant as 0
        for row, target in zip(known.data.tolist(), known.target, strict=True)
    }
    files = make_hospitals(study("breast-cancer"), tmp_path, None)
    assert Path(files["home"]["path"]) == tmp_path / "home" / "patients.csv"
    num_patients = 0
    for hospital, file in files.items():
        for patient in table(file):
            label = patient.pop("diagnosis")
            right = truth[tuple(float(value) for value in patient.values())] == label
            assert right == (hospital != "miscoded")
            num_patients += 1
    assert num_patients == NUM_PATIENTS


def test_the_shifted_hospitals_see_other_patients_and_the_others_do_not() -> None:
    known = load_breast_cancer()
    radius = known.data[:, 0]  # mean radius
    malignant = known.target == 0
    parts = BreastCancer().split(0)
    assert radius[parts["small-tumours"]].max() <= radius[parts["large-tumours"]].min()
    shares = {hospital: malignant[rows].mean() for hospital, rows in parts.items()}
    assert shares["small-tumours"] < 0.15
    assert shares["large-tumours"] > 0.6
    for hospital in ("home", "alike", "miscoded"):  # 37 % of all patients
        assert shares[hospital] == pytest.approx(0.37, abs=0.1)


@pytest.fixture
def of_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of a test are shorter than those that were published."""
    monkeypatch.setattr(source, "ROWS", {})


# -- heart disease ---------------------------------------------------------------------------------


def write_heart_files(folder: Path, rows: str) -> None:
    (folder / "heart-disease").mkdir()
    for name in FILES.values():
        (folder / "heart-disease" / name).write_text(rows)


ROWS = (
    "63.0,1.0,1.0,145.0,0,1.0,2.0,150.0,0.0,2.3,3.0,0.0,6.0,0\n28,1,2,130,132,0,2,185,0,0,?,?,?,4\n"
)


@pytest.mark.usefixtures("of_few_rows")
def test_heart_files_get_a_header_and_empty_cells(tmp_path: Path) -> None:
    write_heart_files(tmp_path, ROWS)
    files = make_hospitals(study("heart-disease"), tmp_path / "out", tmp_path)
    assert list(files) == ["cleveland", "hungary", "switzerland", "va"]
    first, second = table(files["va"])
    assert tuple(first) == COLUMNS
    assert (first["chol"], first["num"]) == ("0", "0")
    assert (second["slope"], second["thal"], second["num"]) == ("", "", "4")


@pytest.mark.usefixtures("of_few_rows")
def test_a_cholesterol_of_0_can_be_marked_as_missing(tmp_path: Path) -> None:
    write_heart_files(tmp_path, ROWS)
    marked = study("heart-disease", zero_cholesterol="missing")
    first, second = table(make_hospitals(marked, tmp_path / "out", tmp_path)["cleveland"])
    assert (first["chol"], second["chol"]) == ("", "132")


@pytest.mark.usefixtures("of_few_rows")
def test_a_damaged_heart_file_is_named_with_its_row(tmp_path: Path) -> None:
    write_heart_files(tmp_path, ROWS + "1,2,3\n")
    with pytest.raises(DataError, match=r"cleveland.data, row 3: 3 cells, expected 14"):
        make_hospitals(study("heart-disease"), tmp_path / "out", tmp_path)


@pytest.mark.usefixtures("of_few_rows")
@pytest.mark.parametrize("cells", [{"chol": "much"}, {"num": "ill"}])
def test_a_heart_file_with_a_word_for_a_number_is_named(
    tmp_path: Path, cells: dict[str, str]
) -> None:
    usual = dict.fromkeys(COLUMNS, "1")
    write_heart_files(tmp_path, "\n".join([",".join({**usual, **cells}.values())] * 20) + "\n")
    asked = study("heart-disease", zero_cholesterol="missing", split_seed=43)
    with pytest.raises(DataError, match=r"cleveland.data is not .* run `erosion data heart-dis"):
        make_hospitals(asked, tmp_path / "out", tmp_path)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (ROWS.encode(), "va.data has 2 rows, expected 200: it was cut off"),
        (b"", "va.data has 0 rows, expected 200"),
        (b"\xff\xfe", "va.data cannot be read .*utf-8"),
    ],
)
def test_a_table_that_is_not_the_published_one_is_refused(
    tmp_path: Path, content: bytes, says: str
) -> None:
    path = tmp_path / "heart-disease" / "processed.va.data"
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"{says}.*run `erosion data heart-disease` again"):
        source.read_rows(path)


@pytest.mark.parametrize("content", [b"", b"PK", b"not a zip file"])
def test_an_archive_that_cannot_be_read_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "images.npz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"images.npz cannot be read .* make it again"):
        source.read_arrays(path, images=(28, 28, 3))


PICTURES = {"images": np.zeros((2, 4, 4, 3), np.uint8), "labels": np.zeros(2, np.uint8)}


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"labels": np.array(["a", "b"])}, "labels holds <U1"),
        ({"labels": np.zeros(3, np.uint8)}, r"labels .* shape \(3,\), expected .* \(2,\)"),
        ({"labels": np.array([-1, 0])}, "labels holds int64"),
        ({"images": np.zeros((2, 4, 4, 3))}, "images holds float64"),
        ({"images": np.zeros((), np.uint8)}, r"images holds uint8 of shape \(\)"),
        ({"images": np.zeros((2, 4, 4), np.uint8)}, r"images .*, expected .* \(2, 4, 4, 3\)"),
    ],
)
def test_arrays_of_another_kind_or_length_are_named(
    tmp_path: Path, changed: dict[str, Any], says: str
) -> None:
    path = tmp_path / "images.npz"
    np.savez(path, **{**PICTURES, **changed})
    with pytest.raises(DataError, match=rf"images.npz: {says}.* make it again"):
        source.read_arrays(path, images=(4, 4, 3), labels=())


@pytest.mark.parametrize("name", ["heart-disease", "mnist"])
def test_absent_data_are_asked_for_by_the_command_that_brings_them(
    tmp_path: Path, name: str
) -> None:
    for data_dir in (None, tmp_path):
        with pytest.raises(DataError, match=f"`erosion data {name}` downloads"):
            make_hospitals(study(name), tmp_path / "out", data_dir)
    (tmp_path / name).mkdir()
    with pytest.raises(DataError, match=f"is missing. `erosion data {name}` downloads"):
        make_hospitals(study(name), tmp_path / "out", tmp_path)


@pytest.mark.data
def test_the_four_heart_hospitals_have_the_published_patients(
    tmp_path: Path, data_dir: Path
) -> None:
    found = study("heart-disease")
    assert isinstance(found.task, TabularTask)
    used = [feature.name for feature in found.task.features]
    patients = {h: table(f) for h, f in make_hospitals(found, tmp_path, data_dir).items()}
    assert {h: len(rows) for h, rows in patients.items()} == {
        "cleveland": 303,
        "hungary": 294,
        "switzerland": 123,
        "va": 200,
    }
    complete = {
        h: sum(all(row[name] for name in used) for row in rows) for h, rows in patients.items()
    }
    assert complete == {"cleveland": 303, "hungary": 261, "switzerland": 46, "va": 130}
    ill = {h: sum(row["num"] != "0" for row in rows) for h, rows in patients.items()}
    assert ill == {"cleveland": 139, "hungary": 106, "switzerland": 115, "va": 149}


# -- MNIST -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_agents", [10, 20, 100])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_in_the_disjoint_partition_every_image_has_one_agent(
    pattern: PatternName, num_agents: int
) -> None:
    labels = digits(TRAIN_COUNTS)
    parts = partition(labels, pattern, num_agents, "disjoint")
    assert sorted(np.concatenate(parts).tolist()) == list(range(60_000))
    for agent, rows in enumerate(parts):
        counts = np.bincount(labels[rows], minlength=10)
        shares = np.roll(PATTERNS[pattern], -agent)
        np.testing.assert_allclose(counts, shares * TRAIN_COUNTS * 10 / num_agents, atol=1)


@pytest.mark.parametrize(
    ("pattern", "num_agents", "num_assigned", "num_unique"),
    [
        ("A", 10, 59_907, 59_907),
        ("F", 100, 59_907, 59_907),
        ("C", 20, 62_608, 58_394),  # 12.5 chunks of a digit each: agents share one
        ("C", 100, 72_240, 48_762),
        ("G", 100, 114_380, 54_782),
    ],
)
def test_the_reference_partition_shares_images_as_the_authors_code_does(
    pattern: PatternName, num_agents: int, num_assigned: int, num_unique: int
) -> None:
    parts = partition(digits(TRAIN_COUNTS), pattern, num_agents, "reference")
    everything = np.concatenate(parts)
    assert (len(everything), len(np.unique(everything))) == (num_assigned, num_unique)


def test_the_user_has_the_papers_number_of_test_images() -> None:
    labels = digits(TEST_COUNTS)
    counts = [len(user_test_images(labels, pattern)) for pattern in PATTERNS]
    assert counts == [996, 922, 1038, 1008, 946, 968, 977]  # A to G


def test_the_commonest_digit_is_that_of_the_users_test_images() -> None:
    # B has 535 of 892 fives, and of the fours and sixes 196 and 191
    assert commonest_share("B") == 535 / (535 + 196 + 191)
    shares = [f"{commonest_share(pattern):.3f}" for pattern in PATTERNS]
    assert shares == ["0.113", "0.580", "0.273", "0.408", "0.376", "0.202", "0.912"]


@pytest.mark.parametrize("how", ["disjoint", "reference"])
def test_fewer_images_keep_the_pattern(how: PartitionName) -> None:
    labels = digits(TRAIN_COUNTS)
    few = partition(labels, "D", 10, how, max_images=50)
    all_of_them = partition(labels, "D", 10, how)
    np.testing.assert_array_equal(
        np.bincount(labels[few[0]], minlength=10), [0, 0, 0, 20, 5, 0, 5, 20, 0, 0]
    )
    assert all(set(part) <= set(whole) for part, whole in zip(few, all_of_them, strict=True))


def write_mnist(folder: Path, counts: Sequence[int]) -> None:
    """Small idx files whose images show their own label in every pixel."""
    (folder / "mnist").mkdir()
    labels = digits(counts).astype(np.uint8)
    images = np.repeat(labels, 28 * 28)
    for part in ("train", "t10k"):
        for name, values, shape in (
            ("images-idx3", images, (len(labels), 28, 28)),
            ("labels-idx1", labels, (len(labels),)),
        ):
            head = bytes([0, 0, 8, len(shape)]) + np.array(shape, dtype=">u4").tobytes()
            path = folder / "mnist" / f"{part}-{name}-ubyte.gz"
            path.write_bytes(gzip.compress(head + values.tobytes(), compresslevel=1))


def test_mnist_hospitals_hold_images_with_their_labels(tmp_path: Path) -> None:
    write_mnist(tmp_path, [20] * 10)
    files = make_hospitals(study("mnist", add_test_images=True), tmp_path / "out", tmp_path)
    found = {hospital: np.load(file["path"]) for hospital, file in files.items()}
    for arrays in found.values():
        assert arrays["images"].dtype == np.uint8
        np.testing.assert_array_equal(arrays["images"][:, 5, 7], arrays["labels"])
    # Pattern C: a quarter of digits 0 to 3, of the training and of the test images.
    assert np.bincount(found["agent-0"]["labels"]).tolist() == [10, 10, 10, 10]
    assert np.bincount(found["agent-9"]["labels"]).tolist() == [0, 5, 5, 5, 5]


def test_the_user_is_agent_0_wherever_the_study_lists_it(tmp_path: Path) -> None:
    write_mnist(tmp_path, [20] * 10)
    turned = study("mnist").model_copy(update={"user": "agent-3"})
    files = make_hospitals(turned, tmp_path / "out", tmp_path)
    assert np.load(files["agent-3"]["path"])["labels"].max() == 3


def test_mnist_wants_a_multiple_of_ten_hospitals(tmp_path: Path) -> None:
    write_mnist(tmp_path, [20] * 10)
    four = study("mnist").model_copy(
        update={"hospitals": ("agent-0", "agent-1", "agent-2", "agent-3")}
    )
    with pytest.raises(StudyError, match="4 names; the source mnist shares out"):
        make_hospitals(four, tmp_path / "out", tmp_path)


@pytest.mark.parametrize(
    "damage",
    [
        b"not gzip",
        gzip.compress(b"\0\0\10\3 short"),
        gzip.compress(bytes(1000))[:10] + b"\7" + gzip.compress(bytes(1000))[11:],
    ],
    ids=["not gzip", "too short", "a wrong block"],
)
def test_a_damaged_idx_file_is_named_with_the_remedy(tmp_path: Path, damage: bytes) -> None:
    write_mnist(tmp_path, [1] * 10)
    (tmp_path / "mnist" / "train-images-idx3-ubyte.gz").write_bytes(damage)
    with pytest.raises(DataError, match=r"train-images.* Delete it and run `erosion data mnist`"):
        make_hospitals(study("mnist"), tmp_path / "out", tmp_path)


@pytest.mark.parametrize("digit", [None, 10], ids=["fewer", "no digit"])
def test_labels_that_do_not_fit_the_images_are_named(tmp_path: Path, digit: int | None) -> None:
    write_mnist(tmp_path, [1] * 10)
    labels = bytes(9) if digit is None else bytes([*range(9), digit])
    head = bytes([0, 0, 8, 1, 0, 0, 0, len(labels)])
    path = tmp_path / "mnist" / "train-labels-idx1-ubyte.gz"
    path.write_bytes(gzip.compress(head + labels))
    with pytest.raises(DataError, match=r"train-labels.* does not fit .* run `erosion data mnist`"):
        read_mnist(path.parent, "train")


@pytest.mark.data
def test_mnist_has_the_published_number_of_each_digit(data_dir: Path) -> None:
    images, labels = read_mnist(data_dir / "mnist", "train")
    assert tuple(np.bincount(labels).tolist()) == TRAIN_COUNTS
    assert images.mean() / 255 == pytest.approx(0.1307, abs=5e-5)
    _, test_labels = read_mnist(data_dir / "mnist", "t10k")
    assert tuple(np.bincount(test_labels).tolist()) == TEST_COUNTS
    for pattern in PATTERNS:
        counts = np.bincount(test_labels[user_test_images(test_labels, pattern)])
        assert commonest_share(pattern) == counts.max() / counts.sum()


# -- stays of diabetic patients --------------------------------------------------------------------


def write_stays(folder: Path, lines: Sequence[dict[str, str]]) -> None:
    """`diabetic_data.csv.gz` with these stays, and usual values for what they do not say."""
    usual = {
        **dict.fromkeys(NUMBERS, "3"),
        **dict.fromkeys(AS_THEY_ARE, "No"),
        **{"gender": "Female", "age": "[70-80)", "race": "Asian", "payer_code": "MD"},
        **{"admission_type_id": "1", "discharge_disposition_id": "1", "readmitted": ">30"},
    }
    rows = [{**usual, **line} for line in lines]
    (folder / FOLDER).mkdir()
    with gzip.open(folder / FOLDER / FILE, "wt", newline="") as file:
        writer = csv.DictWriter(file, [*usual, "encounter_id", "patient_nbr"])
        writer.writeheader()
        writer.writerows(rows)


@pytest.mark.usefixtures("of_few_rows")
def test_of_each_diabetic_patient_the_first_stay_counts(tmp_path: Path) -> None:
    write_stays(
        tmp_path,
        [
            {"patient_nbr": "1", "encounter_id": "20", "readmitted": "<30"},
            {"patient_nbr": "1", "encounter_id": "9", "age": "[0-10)"},
            {"patient_nbr": "2", "encounter_id": "30", "readmitted": "<30"},
            {"patient_nbr": "3", "encounter_id": "31", "discharge_disposition_id": "11"},
            {"patient_nbr": "4", "encounter_id": "32", "payer_code": "?"},
        ],
    )
    files = make_hospitals(study("diabetes-130"), tmp_path / "out", tmp_path)
    found = {(p["age"], p["readmitted within 30 days"]) for p in table(files["medicaid"])}
    assert found == {("5", "no"), ("75", "yes")}
    assert table(files["medicare"]) == []


@pytest.mark.usefixtures("of_few_rows")
def test_every_payer_gets_as_many_patients_drawn_by_the_seed(tmp_path: Path) -> None:
    stays = [
        {"patient_nbr": str(n), "encounter_id": str(n), "num_medications": str(n)}
        for n in range(60)
    ]
    write_stays(tmp_path, stays)
    few = study("diabetes-130", patients=20)

    def drawn(name: str, seed: int) -> list[str]:
        files = make_hospitals(few.model_copy(update={"seed": seed}), tmp_path / name, tmp_path)
        return [patient["num_medications"] for patient in table(files["medicaid"])]

    first = drawn("first", 0)
    assert len(set(first)) == 20
    assert drawn("again", 0) == first
    assert drawn("other", 1) != first


def test_a_damaged_table_of_stays_is_named(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / FILE).write_bytes(b"not gzip")
    with pytest.raises(DataError, match=r"diabetic_data.csv.gz cannot be read .* Fetch it again"):
        make_hospitals(study("diabetes-130"), tmp_path / "out", tmp_path)


@pytest.mark.usefixtures("of_few_rows")
@pytest.mark.parametrize(
    "stay", [{"age": "seventy"}, {"encounter_id": "first"}, {"readmitted": "NO,NO"}]
)
def test_a_stay_with_another_cell_than_published_is_named(
    tmp_path: Path, stay: dict[str, str]
) -> None:
    write_stays(tmp_path, [{"patient_nbr": "1", "encounter_id": n, **stay} for n in "12"])
    path = tmp_path / FOLDER / FILE
    text = gzip.decompress(path.read_bytes()).replace(b'"', b"")  # one cell is two
    path.write_bytes(gzip.compress(text))
    with pytest.raises(DataError, match=r"diabetic_data.csv.gz is not .* Fetch it again"):
        make_hospitals(study("diabetes-130"), tmp_path / "out", tmp_path)


# -- splits and outcomes that a source makes -------------------------------------------------------


@pytest.mark.usefixtures("of_few_rows")
def test_who_was_followed_for_less_than_three_years_is_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "tcga-brca"
    folder.mkdir()
    patients = {"a": (1, 1095), "b": (1, 1096), "c": (0, 1094), "d": (0, 1095), "e": (1, 3)}
    lines = [f"{name},{event},{days}" for name, (event, days) in patients.items()]
    (folder / "brca.csv").write_text("\n".join(["pid,E,T", *lines]) + "\n")
    parts = [f"{name},train,train_0" for name in patients]
    (folder / "train_test_split.csv").write_text("\n".join(["pid,fold,fold2", *parts]) + "\n")
    files = make_hospitals(
        study("tcga-brca-three-years", died_within_days=1095), tmp_path, tmp_path
    )
    found = [(p["T"], p["died"]) for p in table(files["northeast"])]
    assert found == [("1095", "yes"), ("1096", "no"), ("1095", "no"), ("3", "yes")]


@pytest.mark.usefixtures("of_few_rows")
@pytest.mark.parametrize(
    ("row", "part", "file"),
    [
        ("a,dead,3", "train_0", "brca.csv"),
        ("a,1,3", "train_6", "train_test_split.csv"),
        ("a,1,3", "train", "train_test_split.csv"),
    ],
)
def test_a_file_of_regions_with_another_cell_than_published_is_named(
    tmp_path: Path, row: str, part: str, file: str
) -> None:
    folder = tmp_path / "tcga-brca"
    folder.mkdir()
    (folder / "brca.csv").write_text(f"pid,E,T\n{row}\n")
    (folder / "train_test_split.csv").write_text(f"pid,fold,fold2\na,train,{part}\n")
    asked = study("tcga-brca-three-years", died_within_days=1095)
    with pytest.raises(DataError, match=f"{file} is not the table .* Fetch it again"):
        make_hospitals(asked, tmp_path, tmp_path)


@pytest.mark.usefixtures("of_few_rows")
def test_another_split_of_a_region_tests_on_as_many_patients(tmp_path: Path) -> None:
    folder = tmp_path / "tcga-brca"
    folder.mkdir()
    names = [f"{region}{patient}" for region in range(6) for patient in range(51)]
    rows = [f"{name},0,{day}" for day, name in enumerate(names)]
    (folder / "brca.csv").write_text("\n".join(["pid,E,T", *rows]) + "\n")
    parts = [f"{name},train,train_{name[0]}" for name in names]
    (folder / "train_test_split.csv").write_text("\n".join(["pid,fold,fold2", *parts]) + "\n")

    def tested(name: str, seed: int | None) -> list[set[str]]:
        files = make_hospitals(study("tcga-brca", split_seed=seed), tmp_path / name, tmp_path)
        assert all(len(table(file)) == 51 for file in files.values())
        return [{p["T"] for p in table(f) if p["split"] == "test"} for f in files.values()]

    assert tested("flamby", None) == [set()] * 6
    first = tested("first", 1)
    assert [len(days) for days in first] == [11] * 6  # a fifth of 51, rounded up
    assert tested("again", 1) == first
    assert all(a != b for a, b in zip(tested("other", 2), first, strict=True))


@pytest.mark.usefixtures("of_few_rows")
def test_a_heart_split_tests_on_a_third_of_the_complete_patients(tmp_path: Path) -> None:
    complete = [f"{age},1,1,145,200,1,2,150,0,2.3,?,?,?,{age % 2}" for age in range(30, 60)]
    write_heart_files(tmp_path, "\n".join([*complete, "28,1,2,?,132,0,2,185,0,0,?,?,?,4"]) + "\n")
    files = make_hospitals(study("heart-disease", split_seed=43), tmp_path / "out", tmp_path)
    patients = table(files["va"])
    parts = [patient["split"] for patient in patients]
    assert (parts.count("train"), parts.count("test"), parts[-1]) == (20, 11, "train")
    tested = [patient["num"] for patient in patients if patient["split"] == "test"]
    assert sorted(map(tested.count, "01")) == [5, 6]  # half of them are ill, and so it stays


@pytest.mark.data
def test_flambys_split_gives_every_hospital_its_published_test_patients(
    tmp_path: Path, data_dir: Path
) -> None:
    files = make_hospitals(study("heart-disease", split_seed=43), tmp_path, data_dir)
    tested = {
        hospital: [p["num"] != "0" for p in table(file) if p["split"] == "test"]
        for hospital, file in files.items()
    }
    assert {hospital: len(ill) for hospital, ill in tested.items()} == {
        "cleveland": 104,
        "hungary": 89,
        "switzerland": 16,
        "va": 45,
    }
    ill = {hospital: round(sum(of) / len(of), 3) for hospital, of in tested.items()}
    assert ill == {"cleveland": 0.462, "hungary": 0.371, "switzerland": 0.938, "va": 0.778}


@pytest.mark.data
@pytest.mark.parametrize(
    ("ages", "sizes"), [("AGE_STRICT", (248, 476, 322, 263)), ("AGE_SOME", (362, 362, 322, 263))]
)
def test_the_titanics_hospitals_have_the_papers_sizes_and_the_user_its_test_part(
    tmp_path: Path, data_dir: Path, ages: str, sizes: Sequence[int]
) -> None:
    files = make_hospitals(study("titanic", ages=ages), tmp_path, data_dir)
    tables = [table(file) for file in files.values()]
    assert tuple(map(len, tables)) == sizes
    tested = [sum(row["split"] == "test" for row in rows) for rows in tables]
    assert tested == [1 + sizes[0] // 2, 0, 0, 0]
    assert sum(row["survived"] == "1" for rows in tables for row in rows) == 500
