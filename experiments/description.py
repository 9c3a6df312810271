"""`erosion describe --simulate`: the hospitals of a testbed describe their patients here."""

import tempfile
from pathlib import Path

from erosion.client.training.hospital import Hospital
from erosion.common.errors import ErosionError
from erosion.common.study.study import load_study
from erosion.experiments.testbed_sites import sites_of_testbed
from erosion.server.description.description import Description


def describe_here(study_file: Path, data_dir: Path) -> Description:
    """What a deployment would give. Raises StudyError, DataError."""
    study = load_study(study_file)
    replies, declined = {}, {}
    with tempfile.TemporaryDirectory() as made:
        sites = sites_of_testbed(study, study_file.resolve().parent, Path(made), data_dir, None)
        for name, site in sites.items():
            try:
                replies[name] = Hospital(site).summarise(study)
            except ErosionError as problem:
                declined[name] = str(problem)
    return Description(study, replies, declined)
