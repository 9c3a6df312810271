"""`erosion audit`: what people are told, with and without openings."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from erosion_common.errors import CheckpointError, RunError
from erosion_common.program.command import CHECK_FAILED
from erosion_common.program.command_line import main
from erosion_common.sealed.records import Evidence, PendingRound, RecordFiles
from erosion_server.run.audit_run import audit_run
from erosion_server.run.run_folder import RunFolder
from tests.client.sealed.sites import CONTEXT, FACTORS, OWN, by_hand
from tests.support.refusals import refused


def audited(folder: Path, claimed: float) -> list[Path]:
    """A run folder whose third hospital claimed that distance, and everybody's openings."""
    script = by_hand()
    script.measure()
    masked = script.mask(FACTORS)
    evidence = Evidence(
        context=CONTEXT,
        roster=dict(script.attempt.roster),
        asked=script.asked,
        weights=FACTORS,
        scale=script.view.scale,
        distances={**script.distances, "s2": claimed},
        delivered={n: sent.receipt for n, sent in masked.items()},
        apart=0.5,
        at_most=0.4,
    )
    RecordFiles(RunFolder(folder).sealed, "we").suspect(evidence, torch.from_numpy(OWN))
    RunFolder(folder).study.touch()
    paths = []
    for name, sent in masked.items():
        path = folder / f"{name}.safetensors"
        sent.opening.write(path)
        paths.append(path)
    return paths


def test_openings_show_who_summed_what(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = audited(tmp_path, claimed=0.25)
    assert not audit_run(tmp_path, paths)
    said = capsys.readouterr().out
    assert "0.5" in said  # from the user's update
    lines = {line.split(":")[0].strip(): line for line in said.splitlines() if line[:1] == "s"}
    assert set(lines) == {"s0", "s1", "s2", "s3"}
    assert re.findall(r"\d[\d.]*\d|\d", lines["s0"].partition(":")[2]) == ["1"]
    assert re.findall(r"\d[\d.]*\d|\d", lines["s2"].partition(":")[2]) == ["0.25", "2"]
    assert "Not opened" not in said


def test_without_openings_it_says_whom_to_ask(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = audited(tmp_path, claimed=2.0)
    assert main(["audit", str(tmp_path), str(paths[0])]) == 0
    assert "s1, s2, s3" in capsys.readouterr().out


def test_another_opening_than_what_was_sent_is_seen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = audited(tmp_path, claimed=2.0)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    other = audited(elsewhere, claimed=2.0)
    assert main(["audit", str(tmp_path), str(paths[0]), str(other[1])]) == CHECK_FAILED
    assert re.search(r"s1: .*another", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"mask_key": "00" * 31}, "31 bytes"),
        ({"seed": ""}, "0 bytes"),
        ({"name": "s9: claimed the distance 1, and that is what it summed.\n\x1b[2J"}, "letters"),
        ({"dtype": torch.bfloat16}, "bfloat16"),
        ({"dtype": torch.float8_e4m3fn}, "float8"),
        ({"dtype": torch.float64}, "holds float64"),
    ],
)
def test_an_opening_that_is_made_to_do_harm_is_refused(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    """It comes from a hospital that may have lied."""
    with refused(RunError):
        audit_run(tmp_path, [])  # of a run that nothing is wrong with
    audited(tmp_path, claimed=2.0)
    (junk := tmp_path / "junk").write_bytes(b"junk")
    with refused(RunError, "junk"):
        audit_run(tmp_path, [junk])
    update = torch.zeros(2, dtype=changes.get("dtype", torch.float32))
    about = {"name": "s0", "view": "", "seed": "00" * 32, "mask_key": "00" * 32}
    about |= {key: value for key, value in changes.items() if key in about}
    save_file({"update": update}, tmp_path / "made", metadata=about)
    with refused(RunError, reason) as caught:
        audit_run(tmp_path, [tmp_path / "made"])
    assert str(caught.value).isprintable()


def test_evidence_is_for_its_owner_alone(tmp_path: Path) -> None:
    audited(tmp_path, claimed=2.0)
    kept = list(RunFolder(tmp_path).sealed.iterdir())
    assert len(kept) == 2
    assert all(path.stat().st_mode & 0o077 == 0 for path in kept)
    read = RecordFiles(RunFolder(tmp_path).sealed, "we").evidence()
    assert read is not None
    assert np.array_equal(read[1].numpy(), OWN)


def test_evidence_without_a_checksum_is_refused(tmp_path: Path) -> None:
    audited(tmp_path, claimed=2.0)
    (own,) = RunFolder(tmp_path).sealed.glob("*.safetensors")
    save_file({"own": torch.from_numpy(OWN)}, own)
    with pytest.raises(CheckpointError):
        RecordFiles(RunFolder(tmp_path).sealed, "we").evidence()


def test_what_became_of_a_question_is_kept_up_to_a_line_that_was_cut_off(tmp_path: Path) -> None:
    asked = PendingRound(
        round=3, attempt=bytes(16), roster={}, primes=(b"\3", b"\5"), sealed_own=b"\1\2"
    )
    summed = asked.model_copy(update={"distances": {"a": 0.1}, "weights": {"a": 0.3}})
    unmasked = summed.model_copy(update={"delivered": ("a",)})
    kept, path = RecordFiles(tmp_path, "we"), tmp_path / "we-round.json"
    for pending in (asked, summed, unmasked):
        kept.begin(pending)
        assert kept.pending() == RecordFiles(tmp_path, "we").pending() == pending
    path.write_bytes(path.read_bytes()[:-9])  # by a power cut
    kept = RecordFiles(tmp_path, "we")
    assert kept.pending() == summed
    kept.begin(unmasked)
    assert kept.pending() == RecordFiles(tmp_path, "we").pending() == unmasked
    path.write_bytes(path.read_bytes().replace(b"0x1", b"0x2", 1))
    with pytest.raises(CheckpointError, match=path.name):
        RecordFiles(tmp_path, "we").pending()
    kept.begin(asked)
    assert RecordFiles(tmp_path, "we").pending() == asked
