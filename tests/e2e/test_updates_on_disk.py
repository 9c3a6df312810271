"""Updates that are kept on the coordinator's disk give what updates in memory give."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from erosion_common.errors import RunError
from erosion_server.coordination.run_study import MEMORY_SHARE, Setup, need_disk
from erosion_server.link import Link, spool
from erosion_server.link.spool import FileSpace
from tests.support.federation import Federation, small_study

# With attachments of the model's size; tests/common/test_disk_cohort.py has every rule.
ARMS: dict[str, Any] = {"weight_erosion": {}, "scaffold": {}}
LARGE: Mapping[str, Any] = {"name": "mlp", "hidden": [20_000]}  # 100,002 parameters
VERY_LARGE: Mapping[str, Any] = {"name": "mlp", "hidden": [100_000]}  # 2 MB: goes to the disk


def test_a_deployment_on_disk_and_a_simulation_end_with_the_same_parameters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A site whose transfer were not seen to end would keep the others waiting beyond the deadline.
    monkeypatch.setattr(spool, "LONGEST_PACE_SECONDS", 600.0)
    monkeypatch.setattr(spool, "LONGEST_WAIT_SECONDS", 6000.0)
    study = small_study(arms=ARMS, rounds=3, model=VERY_LARGE)
    link = Link("127.0.0.1:0", is_short_of_memory=True)
    with Federation(study, tmp_path, link, Setup(updates="disk")) as federation:
        folder = federation.run_folder.spool
        for name in study.hospitals:
            federation.start_site(name)
        federation.start()
        federation.observer.wait_for(lambda: len(federation.observer.records) > 1)
        assert {path.name for path in (folder / "updates").glob("*.f32")} >= {"alice.f32"}
        assert folder.stat().st_mode & 0o077 == 0
        federation.finish()
        simulated = federation.compare_with_simulation()
        assert all(len(final.params) > 500_000 for final in simulated.finals.values())
    assert not folder.exists()


def test_a_full_disk_ends_the_run_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = FileSpace.write
    study = small_study(arms={"fedavg": {}}, model=VERY_LARGE)
    link = Link("127.0.0.1:0", is_short_of_memory=True)
    with Federation(study, tmp_path, link, Setup(updates="disk")) as federation:
        folder = federation.run_folder.spool
        for name in study.hospitals:
            federation.start_site(name)

        def full(space: FileSpace, data: memoryview) -> None:
            if len(federation.observer.records) == 1:
                raise OSError(28, "No space left on device", str(folder))
            write(space, data)

        monkeypatch.setattr(FileSpace, "write", full)
        federation.start()
        with pytest.raises(RunError, match=r"No space left on device.*--resume"):
            federation.finish()


def test_the_disk_is_used_where_updates_would_fill_the_memory() -> None:
    study = small_study(arms=["fedavg", "scaffold"], model=LARGE)
    # three hospitals' updates of 100,002 float32, each with a control variate of the same size
    num_bytes = 3 * 2 * 4 * 100_002
    assert need_disk(int(num_bytes / MEMORY_SHARE) - 100, study)
    assert not need_disk(int(num_bytes / MEMORY_SHARE) + 100, study)
    assert need_disk(int(num_bytes / MEMORY_SHARE) + 100, study, study)
