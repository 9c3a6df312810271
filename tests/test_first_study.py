"""The tutorial's commands work, in its order, on the tables that it makes."""

import re
import shlex
from pathlib import Path

import pytest

from erosion_common.program.command_line import main

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "first-study.md").read_text()
(TABLES,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
PROPOSAL, WIDER = re.findall(r"```toml\n(.*?)\n```", PAGE, flags=re.DOTALL)
DRAFT, SITES, CHECK, RUN = (
    shlex.split(block)[1:] for block in re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL)
)


@pytest.mark.usefixtures("few_candidates")
def test_the_first_study_runs_as_its_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(TABLES, {})
    assert main(DRAFT) == 0
    study = Path("trial/study.toml")
    draft = study.read_text()
    assert "# ? mean radius" in draft
    study.write_text(re.sub(r"(?m)^(rounds|folds|repeats) = \d+", r"\1 = 2", draft))
    assert main(SITES) == 0
    site = Path("trial/sites/south.toml")
    assert PROPOSAL in site.read_text()
    site.write_text(site.read_text().replace("# ? ", ""))
    assert main(CHECK) == 1
    assert "28.11" in capsys.readouterr().out
    study.write_text(re.sub(r".*(?<!\? )mean radius\", unit.*", WIDER, study.read_text()))
    main(CHECK)  # 1: no coordinator runs, unless another program uses its port
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split()[:2] == ["ok", "contract"] for line in lines)
    assert {line.split()[1] for line in lines if line.startswith("failed")} <= {"port"}
    assert main([*RUN, "--simulate"]) == 0
    shown = capsys.readouterr().out
    assert "best_local" in shown
    assert "took no part" not in shown
