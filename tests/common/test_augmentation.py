"""Changing images at random while a model is trained on them."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from erosion_common.algorithms.apfl import Apfl
from erosion_common.algorithms.fedavg import FedAvg
from erosion_common.learning.local_sgd import LocalResult
from erosion_common.learning.local_work import LocalWork
from erosion_common.learning.models import Logistic, Mlp, build_model, flat_parameters
from erosion_common.learning.training import Augmentation, Training, augmenter, cropped, rotated
from tests.support.close import assert_close
from tests.support.refusals import refused
from tests.support.small_study import make_study
from tests.support.tasks import image

PICTURE = torch.tensor([[[[0.0, 0.2, 0.4], [0.6, 0.8, 1.0]]]])  # (1, 1, 2, 3)


def test_each_flip_is_taken_by_about_half_of_the_images() -> None:
    pixels = PICTURE.expand(400, 1, 2, 3)
    found = augmenter(Augmentation(flip=("horizontal",)), (0.0,), (1.0,), seed=1)(pixels)
    flipped = (found == PICTURE.flip(-1)).flatten(1).all(dim=1)
    kept = (found == PICTURE).flatten(1).all(dim=1)
    assert bool((flipped | kept).all())
    assert 150 < int(flipped.sum()) < 250
    found = augmenter(Augmentation(flip=("vertical",)), (0.0,), (1.0,), seed=1)(pixels)
    assert {tuple(row.flatten().tolist()) for row in found} == {
        tuple(PICTURE.flatten().tolist()),
        tuple(PICTURE.flip(-2).flatten().tolist()),
    }


def test_a_crop_moves_the_image_and_puts_black_where_nothing_was() -> None:
    places = torch.tensor([[1, 1], [0, 0], [2, 1]])  # as it is; down and right; up
    found = cropped(PICTURE.expand(3, 1, 2, 3), places, 1)[:, 0]
    assert_close(found[0], PICTURE[0, 0])
    assert_close(found[1], torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, 0.2]]))
    assert_close(found[2], torch.tensor([[0.6, 0.8, 1.0], [0.0, 0.0, 0.0]]))


def test_a_rotation_turns_about_the_middle_whatever_the_sides_are() -> None:
    square = torch.arange(9.0).view(1, 1, 3, 3) / 9
    assert_close(rotated(square, torch.tensor([90.0])), square.rot90(1, (2, 3)))
    assert_close(rotated(PICTURE, torch.tensor([180.0])), PICTURE.rot90(2, (2, 3)))
    wide = torch.zeros(1, 1, 3, 5)
    wide[0, 0, 1, 1:4] = 1.0  # a bar of three pixels that lies: turned, it stands
    found = rotated(wide, torch.tensor([90.0]))[0, 0]
    assert_close(found[:, 2], torch.ones(3))
    assert float(found.sum()) == pytest.approx(3)
    volume = square[:, :, None].expand(1, 1, 2, 3, 3)
    turned = rotated(volume, torch.tensor([90.0]))
    assert_close(turned[0, 0, 1], square.rot90(1, (2, 3))[0, 0])


def test_brightness_is_of_the_pixels_and_not_of_their_scaled_values() -> None:
    grey = torch.full((300, 1, 1, 1), 0.5)
    scaled = (grey - 0.4) / 0.2
    found = augmenter(Augmentation(brightness=0.5), (0.4,), (0.2,), seed=2)(scaled) * 0.2 + 0.4
    assert 0.25 <= float(found.min()) < 0.27
    assert 0.73 < float(found.max()) <= 0.75
    white = torch.ones(100, 1, 1, 1)
    assert float(augmenter(Augmentation(brightness=0.5), (0.0,), (1.0,), 2)(white).max()) == 1.0


def test_a_volume_is_changed_as_its_slices_would_be() -> None:
    volume = torch.rand(4, 1, 3, 5, 5)
    settings = Augmentation(flip=("horizontal", "vertical"), crop=1, rotation=20, brightness=0.1)
    found = augmenter(settings, (0.0,), (1.0,), seed=3)(volume)
    one = augmenter(settings, (0.0,), (1.0,), seed=3)(volume[:, :, 1])
    assert_close(found[:, :, 1], one)


def work(secret: bytes, augmentation: Augmentation | None) -> LocalWork:
    task = image(classes=["a", "b"], shape=[1, 6, 6], mean=[0.5], deviation=[0.25])
    draws = torch.Generator().manual_seed(4)
    return LocalWork(
        agent="a",
        is_user=False,
        round=1,
        seed=0,
        model=build_model(Logistic(), (1, 6, 6), 2),
        received=torch.zeros(74),
        inputs=torch.randn(10, 1, 6, 6, generator=draws),
        targets=torch.tensor([0, 1] * 5),
        task=task,
        training=Training(epochs=2, batch_size=4, augmentation=augmentation),
        secret=secret,
    )


def trained(secret: bytes, augmentation: Augmentation | None) -> LocalResult:
    prepared = work(secret, augmentation)
    return prepared.sgd(prepared.received)


def test_the_draws_are_the_sites_own_and_repeat() -> None:
    settings = Augmentation(flip=("horizontal",))
    first = trained(b"one", settings)
    assert torch.equal(first.delta, trained(b"one", settings).delta)
    assert not torch.equal(first.delta, trained(b"two", settings).delta)
    plain = trained(b"one", None)
    assert not torch.equal(first.delta, plain.delta)
    assert first.samples_seen == plain.samples_seen == 20


def test_apfl_augments_the_users_images_as_any_hospitals_are() -> None:
    users = replace(work(b"one", Augmentation(flip=("horizontal",))), is_user=True)
    without_own = Apfl(mixing=0.0, adaptive=False)
    assert_close(without_own.train(users).delta, FedAvg().train(users).delta)


def test_measuring_changes_nothing() -> None:
    settings = Augmentation(rotation=90)
    changed, plain = work(b"", settings), work(b"", None)
    parameters = flat_parameters(changed.model) + 1
    assert changed.loss(parameters) == plain.loss(parameters)


def test_the_order_of_mini_batches_stays_what_it_was() -> None:
    seen: list[Tensor] = []
    inputs = torch.arange(10.0).view(10, 1, 1, 1).expand(10, 1, 6, 6)  # a flip shows nothing
    for settings in (None, Augmentation(flip=("vertical",))):
        model = build_model(Mlp(hidden=(4,)), (1, 6, 6), 2)
        model.register_forward_pre_hook(lambda _m, given: seen.append(given[0][:, 0, 0, 0].clone()))
        prepared = replace(work(b"one", settings), inputs=inputs, model=model)
        prepared.sgd(flat_parameters(model))
    plain, flipped = torch.cat(seen[:6]), torch.cat(seen[6:])
    assert_close(plain, flipped)
    assert sorted(plain[:10].tolist()) == list(range(10))


def test_a_change_that_changes_nothing_is_refused() -> None:
    with refused(ValueError, "brightness"):
        Augmentation()


def test_a_table_is_not_augmented() -> None:
    with refused(ValueError, "training.augmentation"):
        make_study(training={"steps": 1, "augmentation": {"flip": ["horizontal"]}})
