"""Sealed rounds over the real line: equal to plain ones, and nowhere a single update."""

from pathlib import Path

import pytest

from erosion.common.rounds import checkpoint
from erosion.common.rounds.study_run import first_state
from erosion.common.sealed.legs import DISTANCE, MASKED, UNMASK
from erosion.experiments.sealed_identities import KEY, write_identities
from erosion.experiments.simulator import simulate
from erosion.server.run.journal import read_journal
from tests.support.federation import Federation
from tests.support.memory_search import in_files, in_own_memory, occurrences, turned_over
from tests.support.sealed_study import ARM, HOSPITALS, PEERS, sealed_study


class SealedFederation(Federation):
    """Its sites have keys for sealed rounds."""

    def site_file(self, name: str, index: int | None = None) -> Path:
        path = super().site_file(name, index)
        if not (path.parent / KEY).exists():
            write_identities(self.folder, HOSPITALS)
        with path.open("a") as file:
            file.write(f'[sealed]\nprivate_key = "{KEY}"\n')
        return path


def opening_of(folder: Path, name: str) -> Path:
    return folder / name / "state" / name / "sealed" / "opening.safetensors"


def test_over_grpc_a_sealed_run_is_the_plain_one_and_shows_no_update(tmp_path: Path) -> None:
    study = sealed_study(evaluation={"test_share": 0.5, "bootstrap": 100})
    with SealedFederation(study, tmp_path) as federation:
        for name in study.hospitals:
            federation.start_site(name)
        federation.start()
        federation.finish()
        needles = {name: turned_over(opening_of(tmp_path, name)) for name in PEERS}
        for name, needle in needles.items():
            assert len(needle) == 6
            assert in_own_memory(needle) == 0, name
            assert in_files(federation.run_folder.path, needle) == []
            planted = bytearray(b"x") + bytes(
                255 - byte for word in needle for byte in word.to_bytes(4, "little")
            )
            assert occurrences(planted, needle) == 1  # the search does find what is there
            assert in_own_memory(needle) >= 1
            planted[:] = bytes(len(planted))
        run = federation.run_folder
        records = [r for r in read_journal(run.journal) if r["arm"] == ARM]
        assert [s["step"] for s in records[0]["steps"]] == ["train", DISTANCE, MASKED, UNMASK]
        assert all(record["outcome"] == "done" for record in records)
        plain = simulate(
            sealed_study(sealed=False, evaluation={"test_share": 0.5, "bootstrap": 100}),
            {name: federation.hospital(name) for name in study.hospitals},
        )
        for arm in study.arms:
            first, path = first_state(study, arm), run.checkpoint(arm)
            final = checkpoint.load(path, first, arm=arm, study_digest=study.digest)
            assert final.params.numpy() == pytest.approx(plain.finals[arm].params.numpy(), abs=1e-6)
            assert final.weights == pytest.approx(plain.finals[arm].weights, abs=1e-7)
