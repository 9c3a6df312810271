"""The image studies: their sources, a split by lesion, pooled training, one cell, and the page."""

import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from erosion.simulation.testbed import study_path
from erosion.simulation.testbed_sites import site_of
from erosion.sources import make_hospitals
from erosion.sources.pictures import COLLECTIONS, Cifar10, read_jpegs, share_out
from erosion_client.dataset.local_dataset import LocalDataset
from erosion_client.site_file import Site
from erosion_common.errors import DataError, StudyError
from erosion_common.study.study import Study, load_study
from experiments import splits
from experiments.cells import Cell
from experiments.papers import image_sites
from experiments.papers.image_sites import (
    ARMS,
    MAJORITY,
    OTHERS,
    OURS,
    POOLED,
    WEIGHING,
    draw,
    in_one_place,
)

LESIONS, PER_LESION = 192, 2
PICTURES = LESIONS * PER_LESION


@pytest.fixture
def ham_folder(tmp_path: Path) -> Path:
    """Random pictures, two of each lesion, in four collections; one lesion is in two of them."""
    generator = np.random.default_rng(0)
    lesions = np.repeat(np.arange(LESIONS), PER_LESION)
    sites = lesions % 4
    sites[1] = 3  # the second picture of lesion 0, whose first is in collection 0
    (tmp_path / "ham10000").mkdir()
    np.savez(
        tmp_path / "ham10000" / "ham10000_28x28.npz",
        images=generator.integers(0, 256, (PICTURES, 28, 28, 3), dtype=np.uint8),
        labels=(lesions // 4 % 2 * 5).astype(np.uint8),
        sites=sites.astype(np.uint8),
        lesions=lesions.astype(np.int32),
    )
    return tmp_path


@pytest.fixture
def cifar_folder(tmp_path: Path) -> Path:
    """Forty images of each class, grey by their number."""
    labels = np.repeat(np.arange(10), 40)
    files = []
    for grey in range(len(labels)):
        buffer = io.BytesIO()
        Image.new("RGB", (32, 32), (grey // 2, grey // 2, grey // 2)).save(buffer, "JPEG")
        files.append(buffer.getvalue())
    (tmp_path / "cifar10").mkdir()
    np.savez(
        tmp_path / "cifar10" / "cifar10_jpeg_train.npz",
        jpeg=np.frombuffer(b"".join(files), dtype=np.uint8),
        offsets=np.cumsum([0, *map(len, files)]),
        labels=labels.astype(np.uint8),
    )
    return tmp_path


@pytest.mark.parametrize("changed", [{"jpeg": np.zeros(9, np.uint8)}, {"labels": np.zeros(4, int)}])
def test_a_damaged_file_of_jpegs_is_named(cifar_folder: Path, changed: dict[str, Any]) -> None:
    path = cifar_folder / "cifar10" / "cifar10_jpeg_train.npz"
    np.savez(path, **{**np.load(path), **changed})
    with pytest.raises(DataError, match=r"cifar10_jpeg_train.npz is damaged .* make it again"):
        read_jpegs(path).images(np.arange(10))


def small(name: str, **changes: Any) -> Study:
    """A shipped study that ends after one short round."""
    raw = load_study(study_path(name)).model_dump(mode="json")
    training = raw["training"] | {"steps": 2, "batch_size": 4}
    return Study.model_validate(raw | {"rounds": 1, "training": training, **changes})


def sites_of(study: Study, folder: Path) -> Mapping[str, Site]:
    files = make_hospitals(study, folder / "made", folder)
    return {name: site_of(name, file) for name, file in files.items()}


# -- sources ---------------------------------------------------------------------------------------


def test_a_lesion_of_two_collections_is_at_none(ham_folder: Path) -> None:
    files = make_hospitals(small("ham10000"), ham_folder / "made", ham_folder)
    held = {name: np.load(file["path"]) for name, file in files.items()}
    assert list(held) == list(COLLECTIONS)
    assert [len(arrays["labels"]) for arrays in held.values()] == [94, 96, 96, 96]
    assert 0 not in np.concatenate([arrays["lesions"] for arrays in held.values()])
    assert all(file["patient"] == "lesions" for file in files.values())


@pytest.mark.parametrize("user", COLLECTIONS)
def test_no_lesion_is_in_the_training_and_the_test_part(ham_folder: Path, user: str) -> None:
    for seed in range(3):
        study = small("ham10000", user=user, seed=seed)
        files = make_hospitals(study, ham_folder / "made", ham_folder)
        split = LocalDataset(site_of(user, files[user]), study).split
        lesions = np.load(files[user]["path"])["lesions"]
        assert len(split.test) >= PER_LESION
        assert len(split.training) + len(split.test) == len(lesions)
        assert not set(lesions[split.training]) & set(lesions[split.test])


def test_a_picture_file_without_lesions_is_named(ham_folder: Path) -> None:
    np.savez(ham_folder / "ham10000" / "ham10000_28x28.npz", labels=np.zeros(3))
    with pytest.raises(DataError, match=r"ham10000_28x28.npz cannot be read .* make it again"):
        make_hospitals(small("ham10000"), ham_folder / "made", ham_folder)


@pytest.mark.parametrize("name", ["ham10000", "cifar10"])
def test_absent_pictures_are_told_where_they_come_from(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    for data_dir in (None, tmp_path):
        with pytest.raises(DataError, match=r"README.md says where"):
            make_hospitals(small(name), tmp_path / "made", data_dir)


def test_every_hospital_has_as_many_images_and_no_image_two_hospitals() -> None:
    labels = np.arange(5000) % 10
    parts = share_out(labels, 5, Cifar10(images=100), np.random.default_rng(0))
    assert [len(part) for part in parts] == [100] * 5
    assert len(np.unique(np.concatenate(parts))) == 500
    again = share_out(labels, 5, Cifar10(images=100), np.random.default_rng(0))
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


def test_a_smaller_concentration_leaves_fewer_classes_to_a_hospital() -> None:
    labels = np.arange(5000) % 10

    def commonest(concentration: float) -> float:
        options = Cifar10(images=100, concentration=concentration)
        parts = share_out(labels, 5, options, np.random.default_rng(1))
        return float(np.mean([np.bincount(labels[part]).max() for part in parts]))

    assert commonest(0.01) > 90 > commonest(0.5) > 20 > commonest(1000)


def test_a_drawn_image_keeps_its_class(cifar_folder: Path) -> None:
    study = small("cifar10", testbed={"source": "cifar10", "options": {"images": 20}})
    with pytest.raises(StudyError, match=r"together they may draw 40, .* Write 8 or less"):
        make_hospitals(study, cifar_folder / "made", cifar_folder)
    two = small(
        "cifar10",
        hospitals=["hospital-0", "hospital-1"],
        testbed={"source": "cifar10", "options": {"images": 20}},
    )
    for file in make_hospitals(two, cifar_folder / "made", cifar_folder).values():
        arrays = np.load(file["path"])
        assert arrays["images"].shape == (20, 32, 32, 3)
        numbers = 2 * arrays["images"].mean(axis=(1, 2, 3))  # the image's own, to within JPEG
        assert np.abs(numbers // 40 - arrays["labels"]).max() <= 1


@pytest.mark.data
@pytest.mark.skipif("EROSION_DATA" not in os.environ, reason="needs the data sets: EROSION_DATA")
def test_the_four_collections_have_their_pictures(tmp_path: Path) -> None:
    data_dir = Path(os.environ["EROSION_DATA"])
    files = make_hospitals(load_study(study_path("ham10000")), tmp_path, data_dir)
    sizes = [len(np.load(file["path"])["labels"]) for file in files.values()]
    # 26 pictures of the 9 lesions in two collections are left out of 2259, 3363, 3954 and 439
    assert sum(sizes) == 10_015 - 26
    assert max(a - b for a, b in zip((2259, 3363, 3954, 439), sizes, strict=True)) < 26


# -- the experiment --------------------------------------------------------------------------------


def test_pooled_training_has_everybody_s_pictures_but_the_user_s_test_part(
    ham_folder: Path,
) -> None:
    study = small("ham10000", user="vidir_modern", evaluation={"test_share": 0.3})
    sites = sites_of(study, ham_folder)
    apart = LocalDataset(sites["vidir_modern"], study)
    together, site = in_one_place(study, sites)
    pooled = LocalDataset(site, together)
    assert together.training.steps == 4 * 2
    assert len(pooled.split.training) == PICTURES - PER_LESION - len(apart.split.test)
    test_images = [part.inputs for _, part in (apart.parts(None), pooled.parts(None))]
    assert np.array_equal(test_images[0].numpy(), test_images[1].numpy())
    assert np.array_equal(apart.tested_outcomes, pooled.tested_outcomes)


def test_a_cell_measures_every_arm_on_the_same_pictures(
    ham_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arms = {arm: ARMS[arm] for arm in ("local", "fedavg", *WEIGHING)}
    config = {"user": "vienna_dias", "seed": 0, "arms": arms, "folds": 3}
    shipped = small("ham10000")
    monkeypatch.setattr(splits, "load_study", lambda _path: shipped)
    found = image_sites.run({"study": "ham10000", **config}, ham_folder)
    assert found["pictures"] == 28
    assert set(found) == {*arms, "local_stopped", POOLED, MAJORITY, "pictures"}
    assert found[MAJORITY]["accuracy"] == 0.5
    assert found[MAJORITY]["auroc"] == 0.5
    assert found["local_stopped"]["rounds"] == 1
    for arm in WEIGHING:
        assert set(found[arm]["weights"]) == set(COLLECTIONS) - {"vienna_dias"}
        assert min(found[arm]["weights"].values()) >= 0
    assert all(np.isfinite(found[arm]["log_loss"]) for arm in (*arms, POOLED))
    newer = {**config, "part": "newer", "arms": {"local": {}, "fedper": {}}}
    same = image_sites.run({"study": "ham10000", **newer}, ham_folder)
    assert set(same) == {"local", "fedper"}
    assert same["local"] == found["local"]


def test_a_method_that_diverges_leaves_the_other_figures_as_they_are(
    ham_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = small("ham10000", rounds=3, federation={"max_skipped_rounds": 1})
    monkeypatch.setattr(splits, "load_study", lambda _path: shipped)
    arms = {"local": {}, "fedper": {}, "per_fedavg": {"inner_rate": 1e38}}
    config = {"study": "ham10000", "user": "vienna_dias", "seed": 0, "part": "newer"}
    found = image_sites.run({**config, "arms": arms}, ham_folder)
    assert "learning_rate" in found["per_fedavg"].pop(image_sites.DIVERGED)
    assert found["per_fedavg"] == dict.fromkeys(image_sites.METRICS)
    del arms["per_fedavg"], found["per_fedavg"]
    assert found == image_sites.run({**config, "arms": arms}, ham_folder)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no GPU")
def test_a_cell_comes_out_the_same_on_a_gpu(
    ham_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = small("ham10000")
    monkeypatch.setattr(splits, "load_study", lambda _path: shipped)
    arms = {arm: ARMS[arm] for arm in ("local", "fedavg")}
    config = {"study": "ham10000", "user": "vienna_dias", "seed": 0, "arms": arms, "part": "newer"}
    first, again = (image_sites.run(config, ham_folder, device="cuda") for _ in range(2))
    assert first == again
    for arm, figures in image_sites.run(config, ham_folder).items():
        assert first[arm] == pytest.approx(figures, abs=1e-4)


def cells_of(splits: int) -> dict[str, Cell]:
    """As if they had been run: the recommended rule is better than local in all but AUROC."""
    cells = {}
    for plan in image_sites.plans():
        split, user = plan.config["seed"], plan.config["user"]
        if split >= splits:
            continue
        figures: dict[str, Any] = {
            arm: {"accuracy": 0.7, "auroc": 0.8 + 0.01 * (split % 2), "log_loss": 0.9}
            for arm in (*ARMS, "local_stopped", POOLED, MAJORITY)
        }
        figures["local_stopped"]["rounds"] = 4
        figures[OURS[0]] |= {"accuracy": 0.75 + 0.0001 * split, "log_loss": 0.8 + 0.0001 * split}
        for arm in WEIGHING:
            others = image_sites.users_of(plan.config["study"])
            figures[arm]["weights"] = {name: 0.25 for name in others if name != user}
        cells[plan.name] = Cell(plan, {**figures, "pictures": 130}, "c0ffee", "command", 1.0)
    return cells


def test_the_page_says_which_differences_an_interval_supports() -> None:
    text = draw(cells_of(5)).text
    assert "| local | 0.700 ± 0.000 | 0.700 ± 0.000 |" in text
    users, metrics = 4 + 1, 3  # each collection and the mean of all
    of_ham = users * len(OURS) * len(OTHERS) * metrics
    assert f"for all {of_ham} together" in text
    # accuracy and log loss, against every other arm: the recommended rule alone differs
    assert f"leaves out 0 in {users * 2 * len(OTHERS)} of {of_ham} comparisons" in text
    assert "is better than local for rosendahl (accuracy), local_stopped for rosendahl" in text
    assert "- `evidence_erosion` is worse than none of them." in text
    assert "| rosendahl | weight_erosion | own | 0.25 | 0.25 | 0.25 |" in text


def test_an_auroc_that_is_undefined_in_a_split_leaves_that_split_out() -> None:
    cells = cells_of(5)
    figures = cells["cifar10-hospital-0-0"].figures
    for arm in (*ARMS, "local_stopped", POOLED, MAJORITY):
        figures[arm]["auroc"] = None
    only = {name: cell for name, cell in cells.items() if name.startswith("cifar10")}
    text = draw(only).text
    assert "| local | 0.805 ± 0.003 |" in text
    assert "in 8 of 24 comparisons" in text  # accuracy and log loss of the recommended rule
    assert "nan" not in text
