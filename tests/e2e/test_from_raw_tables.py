"""From raw tables to a report, by three commands and nothing in between."""

from pathlib import Path

import numpy as np
import pytest

from erosion_common.program.command_line import main

NUM = 420
NAMES = {
    "berlin": ("age", "sex", "systolic_bp", "cholesterol", "length_of_stay", "died"),
    "lyon": ("Age (years)", "Sex", "systolic bp", "Cholesterol", "Length of stay", "Died"),
    "madrid": ("AGE", "SEX", "Systolic-BP", "CHOLESTEROL", "LengthOfStay", "DIED"),
}
SEPARATORS = {"berlin": ",", "lyon": ";", "madrid": "\t"}


def write_table(folder: Path, hospital: str, seed: int, *, share: float, is_inverted: bool) -> None:
    """Patients of a hospital; how long they stayed is known only afterwards."""
    draws = np.random.default_rng(seed)
    age, pressure = draws.normal(64, 11, NUM), draws.normal(135, 18, NUM)
    cholesterol = draws.normal(210, 35, NUM)
    risk = (age - 64) / 11 + (pressure - 135) / 30 + draws.normal(0, 1.2, NUM)
    died = risk > np.quantile(risk, 1 - share)
    stay = np.where(died, draws.integers(1, 4, NUM), draws.integers(4, 20, NUM))
    coded = np.where(died != is_inverted, "yes", "no")
    mark = SEPARATORS[hospital]
    lines = [mark.join(NAMES[hospital])]
    for row in zip(age, draws.choice(["f", "m"], NUM), pressure, cholesterol, stay, coded,
                   strict=True):  # fmt: skip
        a, sex, p, c, s, d = row
        lines.append(mark.join([f"{a:.0f}", str(sex), f"{p:.0f}", f"{c:.0f}", str(s), str(d)]))
    if hospital == "lyon":  # damaged: two rows are cut short of their values
        lines += [mark * 5, mark * 5]
    (folder / f"{hospital}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.mark.usefixtures("few_candidates")
@pytest.mark.parametrize("share", [0.1, 0.5])
def test_three_commands_end_with_a_report_that_names_the_leak_and_the_inverted_hospital_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], share: float
) -> None:
    tables = tmp_path / "trial"
    tables.mkdir()
    for seed, hospital in enumerate(NAMES):
        write_table(tables, hospital, seed, share=share, is_inverted=hospital == "madrid")
    study = tables / "study.toml"
    assert main(["study", "new", str(tables), "--target", "died", "--user", "berlin"]) == 0
    assert "# ? length_of_stay: " in study.read_text(encoding="utf-8")
    assert main(["site", "new", "--study", str(study), "--data", str(tables)]) == 0
    capsys.readouterr()
    assert main(["testbed", str(study), "--simulate"]) == 0
    top = capsys.readouterr().out.partition("\narm ")[0]
    looked_at = {line.partition(":")[0] for line in top.splitlines() if line.startswith("Check ")}
    assert looked_at == {"Check died at madrid"}
    assert "length_of_stay" in top
