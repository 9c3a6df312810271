"""Figures that the texts quote are those of the result files."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SPLITS = json.loads((ROOT / "experiments" / "results" / "splits.json").read_text())


def flowing(path: str) -> str:
    """A text without its line breaks and comment marks."""
    return re.sub(r"\s+(?:# )?", " ", (ROOT / path).read_text(encoding="utf-8"))


def errors(arm: str) -> str:
    mean, error = SPLITS["arms"][arm]["errors"]
    return f"{mean:.2f} ± {error:.2f}"


def test_the_readme_quotes_the_splits() -> None:
    text = flowing("README.md")
    assert f"over {SPLITS['seeds']} splits" in text
    assert f"({errors('weight_erosion')} against {errors('local')} and {errors('fedavg')}" in text
    assert f"the verdict says so in {SPLITS['verdicts']['better']} of them" in text
    assert "worse" not in SPLITS["verdicts"]


def test_the_default_study_quotes_the_splits() -> None:
    text = flowing("experiments/studies/breast-cancer.toml")
    found = SPLITS["verdicts"]
    assert f'the verdict was "better" in {found["better"]} of the {SPLITS["seeds"]}' in text
