"""`report.html`: a finished run on one page that needs no other file, no network and no scripts."""

import json
from pathlib import Path

from erosion.common.errors import CheckpointError
from erosion.common.support.files import write_atomically
from erosion.server.output.report.page import render
from erosion.server.output.report.run_data import read_run
from erosion.server.run import provenance
from erosion.server.run.run_folder import RunFolder


def write_report(run_folder: Path) -> Path:
    """Write the report of the finished run in `run_folder`; returns its path.

    Raises StudyError or CheckpointError where the folder's files cannot be used.
    """
    folder = RunFolder(run_folder)
    run = read_run(folder)
    page = render(run, folder.study.read_text("utf-8-sig"), _versions(folder))
    write_atomically(folder.report, page)
    return folder.report


def _versions(folder: RunFolder) -> dict[str, str]:
    """Of the programs that made the run: a report can be written again years later."""
    try:
        card = json.loads(folder.model_card.read_text("utf-8"))
        return {str(name): str(version) for name, version in card["versions"].items()}
    except FileNotFoundError:
        return provenance.versions()
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise CheckpointError(
            f"{folder.model_card} does not say which versions made the model. Was it edited?"
        ) from None
