"""Updates on disk: the same answers as in memory, and memory that does not grow."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest
import torch

from erosion_common.aggregation.cohort import DiskCohort, HospitalName, MemoryCohort, Update, store
from erosion_common.algorithms import REGISTRY
from erosion_common.rounds.records import Absence, Answer
from erosion_common.rounds.round import first_state
from experiments.benchmarks.measurement import advance
from tests.support.contexts import CONTEXT
from tests.support.disk_memory import measure
from tests.support.refusals import refused


def updates(
    dim: int, num_hospitals: int = 5, attachment_sizes: Mapping[str, int] | None = None
) -> list[Update]:
    return [
        Update(
            f"h{i}",
            1,
            1 + torch.randn(dim, generator=torch.Generator().manual_seed(i)),
            num_samples=10 + i,
            samples_seen=10,
            attachments={
                name: torch.full((size,), 1.0 + i)
                for name, size in (attachment_sizes or {}).items()
            },
        )
        for i in range(num_hospitals)
    ]


def both(
    folder: Path, dim: int, attachment_sizes: Mapping[str, int] | None = None
) -> tuple[MemoryCohort, DiskCohort]:
    own, *others = updates(dim, attachment_sizes=attachment_sizes)
    stored_own, *stored = (store(folder, update) for update in (own, *others))
    return (
        MemoryCohort(own, {u.agent: u for u in others}),
        DiskCohort(stored_own, {u.agent: u for u in stored}, folder),
    )


def test_a_stored_update_is_the_same_update(tmp_path: Path) -> None:
    update = updates(1000, attachment_sizes={"radius": 1})[0]
    stored = store(tmp_path, update)
    assert torch.equal(stored.delta, update.delta)
    assert (stored.agent, stored.round, stored.num_samples) == ("h0", 1, 10)
    assert stored.attachments == update.attachments
    assert [file.name for file in tmp_path.iterdir()] == ["h0.f32"]


@pytest.mark.parametrize("dim", [1, 7, 1_000_003])
def test_every_answer_is_that_of_memory(tmp_path: Path, dim: int) -> None:
    memory, disk = both(tmp_path, dim)
    weights = torch.tensor([1.0, 0.0, 0.5, -2.0, 0.25], dtype=torch.float64)
    assert disk.peers == memory.peers
    assert disk.own_norm() == memory.own_norm()
    assert torch.equal(disk.norms(), memory.norms())
    assert torch.equal(disk.distances_to_own(), memory.distances_to_own())
    assert torch.equal(disk.gram(), memory.gram())
    assert torch.equal(disk.weighted_sum(weights), memory.weighted_sum(weights))
    for (here, rows), (there, others) in zip(disk.blocks(), memory.blocks(), strict=True):
        assert here == there
        assert all(map(torch.equal, rows, others))


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_every_method_works_from_disk(name: str, tmp_path: Path) -> None:
    arm = REGISTRY[name](algorithm=name)
    algorithm = arm.build(CONTEXT)
    memory, disk = both(tmp_path, 50, arm.attachment_sizes(50))
    in_memory = algorithm.update(algorithm.init(50), memory)
    from_disk = algorithm.update(algorithm.init(50), disk)
    assert torch.equal(in_memory.delta, from_disk.delta)
    assert in_memory.weights == from_disk.weights


def test_a_round_is_advanced_from_disk(tmp_path: Path) -> None:
    algorithm = REGISTRY["weight_erosion"](algorithm="weight_erosion").build(CONTEXT)
    arrived = updates(100)
    answers: dict[HospitalName, Answer] = {u.agent: u for u in arrived[:4]}
    answers["h4"] = Absence("was not connected")
    stored = {n: store(tmp_path, a) if isinstance(a, Update) else a for n, a in answers.items()}
    run = first_state(algorithm, torch.zeros(100))
    in_memory, record = advance(run, algorithm, answers, arm="x", user="h0", quorum=1)
    from_disk, disk_record = advance(
        run,
        algorithm,
        stored,
        arm="x",
        user="h0",
        quorum=1,
        cohort_of=partial(DiskCohort, folder=tmp_path),
    )
    assert torch.equal(in_memory.params, from_disk.params)
    assert record == disk_record


def test_a_methods_state_outlives_the_rounds_files(tmp_path: Path) -> None:
    for name in ("weighted_gradient", "bias_correction", "centered_clipping"):
        algorithm = REGISTRY[name](algorithm=name).build(CONTEXT)
        memory, disk = both(tmp_path, 20)
        expected = algorithm.update(algorithm.init(20), memory).state
        state = algorithm.update(algorithm.init(20), disk).state
        for file in tmp_path.iterdir():  # as the next round's updates would
            file.write_bytes(bytes(file.stat().st_size))
        again = [algorithm.update(s, memory).delta for s in (expected, state)]
        assert torch.equal(again[0], again[1]), name


def test_a_file_that_was_cut_off_is_noticed(tmp_path: Path) -> None:
    _, disk = both(tmp_path, 10)
    (tmp_path / "h3.f32").write_bytes(b"1234")
    with refused(OSError, "h3.f32", 10):
        disk.gram()


def test_memory_stays_below_four_models_whatever_the_number_of_hospitals(tmp_path: Path) -> None:
    few, some, many = measure("weight_erosion", (4, 16, 64), 1_500_000, tmp_path)
    assert many < 4
    assert many - few < 0.5
    assert few <= some <= many  # a process's peak never falls
