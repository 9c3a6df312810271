"""The folder of a run, with a model whose predictions can be computed by hand."""

import json
from pathlib import Path
from typing import Any

import torch

from erosion_common.formats.json_file import with_checksum, without_checksum
from erosion_common.formats.model_card import CARD, ModelCard, write_model
from erosion_common.learning.finished import Predictor
from erosion_common.protocol.messages import Scaling
from erosion_common.study.study import Study
from tests.support.small_study import make_study

# Logits of "ill" minus those of "healthy" are the scaled age.
PARAMETERS = torch.tensor([0.0, 0.0, 1.0, 0.0, 0.0, 0.0])
SCALING = Scaling(mean=(50.0, 0.0), deviation=(10.0, 1.0))


def run_folder(
    folder: Path, study: Study | None = None, parameters: Predictor = PARAMETERS, **changes: Any
) -> Path:
    study = study or make_study()
    card = ModelCard(
        study=study.name,
        arm="fedavg",
        user="alice",
        task=study.task,
        model=study.model,
        scaling=SCALING,
        versions={"erosion": "0.1.0"},
    )
    write_model(folder, card, parameters)
    values = without_checksum(json.loads((folder / CARD).read_text()))
    (folder / CARD).write_text(json.dumps(with_checksum({**values, **changes})))
    return folder
