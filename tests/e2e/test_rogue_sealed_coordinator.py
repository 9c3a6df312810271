"""A rogue coordinator of sealed rounds against a site's program, over TLS.

Three more hospitals are the test's own; they forget what they answered. Each test is a row of
docs/threat-model.md.
"""

import shutil
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
import torch

from erosion_client.records.records import FILE_NAME, Records
from erosion_client.sealed.sealed_site import SealedIdentity, SealedSite
from erosion_common.algorithms.base import TRAIN
from erosion_common.errors import EnrolmentError, Refusal
from erosion_common.sealed import phases, pinned_keys
from erosion_common.sealed.phases import SumRules
from erosion_common.support.keys import load_private_key, new_private_key
from tests.client.sealed.sites import Script
from tests.common.sealed.vectors import f32
from tests.support.remote_site import START, RemoteSite, context
from tests.support.rogue import RealSite, Rogue, rogue_coordinator
from tests.support.sealed_study import sealed_study
from tests.support.small_study import sixty_patients

KEYS = {name: new_private_key() for name in ("carol", "dave", "erin")}
PUBLIC = {name: key.public_key() for name, key in KEYS.items()}
UPDATE = f32([0.1, -0.1, 0.2, -0.2, *[0.1, -0.1] * 9])
NUMBERS = count()
EQUAL = dict.fromkeys(["bob", "carol", "dave", "erin"], 0.2)


def prepare(site: RealSite) -> None:
    (site.folder / "data.csv").write_text(sixty_patients("bob"))
    (site.folder / pinned_keys.NAME).write_text(pinned_keys.as_text(PUBLIC))
    site.file.write_text(site.file.read_text() + "[budget]\nruns_per_study = 100\n")


@pytest.fixture(scope="module")
def rogue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rogue]:
    with rogue_coordinator(tmp_path_factory.mktemp("rogue"), prepare) as rogue:
        yield rogue
        assert rogue.site.lives


def round_of(rogue: Rogue, run: str, attempt: int = 0, number: int = 1) -> Script:
    """A round at bob's program, and at the others."""
    bob = load_private_key(rogue.site.folder / "node.key", EnrolmentError).public_key()
    study = sealed_study()
    sites = {
        name: SealedSite(
            SealedIdentity(name, key, {**PUBLIC, "bob": bob}), Records(None, "x").sums, SumRules()
        )
        for name, key in KEYS.items()
    }
    return Script(
        {"bob": RemoteSite(rogue, study), **sites},  # type: ignore[dict-item]
        UPDATE,
        dict.fromkeys(("bob", *sites), UPDATE),
        context(study, number, attempt, run),
    )


@pytest.mark.parametrize(
    ("step", "values", "enclosed"),
    [
        (TRAIN, {}, {}),
        (TRAIN, {"attempt": "zz" * 16}, {}),
        (phases.DISTANCE, {"roster": {}, "modulus": "", "base": "", "scale": "0x1p+0"}, {}),
        (
            phases.DISTANCE,
            {"roster": {}, "modulus": "", "base": "", "scale": "0x1p+0"},
            {
                phases.SEALED_OWN: torch.zeros(22, 0, dtype=torch.uint8),
                phases.MODULUS_PROOF: torch.zeros(11, 0, dtype=torch.uint8),
            },
        ),
        (
            phases.DISTANCE,
            {"roster": {}, "modulus": "ff" * 2000, "base": "02", "scale": "0x1p+0"},
            {},
        ),
        (phases.DISTANCE, {"roster": {}, "modulus": "03", "base": "02", "scale": "nan"}, {}),
        (phases.MASKED, {"weights": {"bob": "nan"}, "scale": "inf", "envelopes": {}}, {}),
        (phases.MASKED, {"weights": {"bob": "0x1p-2"}, "scale": "0x1p+25", "envelopes": {}}, {}),
        (phases.UNMASK, {"delivered": {}, "told": {"weights": {}}}, {}),
        (phases.UNMASK, {"delivered": {"bob": {"words": "", "signature": ""}}}, {}),
    ],
)
def test_a_leg_that_makes_no_sense_is_refused_and_the_site_lives_on(
    rogue: Rogue, step: str, values: dict[str, Any], enclosed: dict[str, torch.Tensor]
) -> None:
    study = sealed_study()
    bob = RemoteSite(rogue, study)
    run = f"nonsense-{next(NUMBERS)}"  # in the last one's, its record of sums may have been lost
    bob.hello(context(study, run=run))
    if step == TRAIN:
        bob.at = context(study, number=2, run=run)
    with pytest.raises(Refusal) as refused:
        bob.ask(step, values, enclosed, parameters=START if step == TRAIN else None)
    assert "unexpected" not in str(refused.value)


def test_an_honest_round_is_answered(rogue: Rogue) -> None:
    script = round_of(rogue, "honest")
    script.measure()
    assert script.check(script.sum(EQUAL)).holds


@pytest.mark.parametrize("leg", ["before it", "in leg 2", "deleted"])
def test_an_old_record_of_sums_is_held_against_the_log(rogue: Rogue, leg: str) -> None:
    """Restored from a backup of before the round, of within it, or removed."""
    ledger, backup = rogue.site.state / FILE_NAME, rogue.site.folder / "backup.sqlite"
    round_of(rogue, f"earlier than {leg}").measure()  # a site's first round makes the file
    script = round_of(rogue, leg)
    shutil.copy(ledger, backup)
    script.measure()
    if leg == "in leg 2":
        shutil.copy(ledger, backup)
    script.sum(EQUAL)
    rogue.site.stop()
    if leg == "deleted":
        ledger.unlink()
    else:
        shutil.copy(backup, ledger)
    rogue.site.start()
    with pytest.raises(Refusal, match="records were restored"):
        round_of(rogue, leg, attempt=1).measure()
    following = round_of(rogue, leg, number=2)
    following.measure()
    assert following.check(following.sum(EQUAL)).holds
    assert "restored or replaced" in rogue.site.output.read_text()
