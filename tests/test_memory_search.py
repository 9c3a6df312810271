"""The search for what nobody may see does find what is there."""

import subprocess
import sys
from pathlib import Path

import numpy as np

from tests.support.memory_search import in_files, in_memory, needles
from tests.support.patience import PATIENCE

UPDATE = np.random.default_rng(7).standard_normal(40).astype(np.float32)


def test_values_are_found_in_every_form_and_at_any_byte(tmp_path: Path) -> None:
    sought = needles(UPDATE, "bob", {"weighted": 2.0**20})
    forms = {
        "float32": UPDATE.tobytes(),
        "float64": UPDATE.astype(np.float64).tobytes(),
        "whole numbers weighted": np.rint(UPDATE.astype(float) * 2**20).astype("<i4").tobytes(),
    }
    for shift, (form, content) in enumerate(forms.items()):
        (tmp_path / "file").write_bytes(b"x" * shift + content)
        found = in_files(tmp_path, sought)
        assert found == {what for what in sought if what.endswith(form)}


def test_a_process_that_holds_them_is_found_out(tmp_path: Path) -> None:
    (tmp_path / "update").write_bytes(UPDATE.tobytes())
    holder = "import sys; held = open(sys.argv[1], 'rb').read(); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", holder, str(tmp_path / "update")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = in_memory(process.pid, needles(UPDATE, "bob", {}))
        process.communicate(b"\n", timeout=PATIENCE)
    assert {what.rpartition(" ")[2] for what in found} == {"float32"}
