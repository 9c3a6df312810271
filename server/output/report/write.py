"""`report.html`: a finished run on one page that needs no other file, no network and no scripts."""

from pathlib import Path

from erosion.common.formats.model_card import read_card
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
    if not folder.model_card.exists():
        return provenance.versions()
    return read_card(folder.path).versions
