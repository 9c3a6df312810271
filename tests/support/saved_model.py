"""The folder of a run, with a model whose predictions can be computed by hand."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from erosion_common.study.study import Study
from tests.support.small_study import make_study

# Logits of "ill" minus those of "healthy" are the scaled age.
PARAMETERS = torch.tensor([0.0, 0.0, 1.0, 0.0, 0.0, 0.0])
SCALING = {"mean": [50.0, 0.0], "deviation": [10.0, 1.0]}


def run_folder(
    folder: Path, study: Study | None = None, parameters: torch.Tensor = PARAMETERS, **changes: Any
) -> Path:
    study = study or make_study()
    card = {
        "format": 1,
        "study": study.name,
        "arm": "fedavg",
        "user": "alice",
        "task": study.task.model_dump(mode="json"),
        "model": study.model.model_dump(mode="json"),
        "scaling": SCALING,
        "missing_means": None,
        "versions": {"erosion": "0.1.0"},
    }
    (folder / "model.json").write_text(json.dumps({**card, **changes}))
    save_file({"parameters": parameters}, folder / "model.safetensors")
    return folder
