"""Every file that a person names is read only where it is an ordinary file of a likely size."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from erosion_client.connection.credentials import credentials_for
from erosion_client.enrolment.install import install
from erosion_client.site_file import Site, load_site
from erosion_common.audit.log_files import verify
from erosion_common.errors import ErosionError, SiteError
from erosion_common.rounds.checkpoint import load_model
from erosion_common.sealed.audit import read_opening
from erosion_common.sealed.pinned_keys import read_pinned_keys
from erosion_common.study.study import load_study
from erosion_common.support import files
from erosion_common.support.keys import load_private_key
from erosion_server.enrolment.certificates import load_certificate, read_request
from tests.support.refusals import refused


def site(path: Path) -> Site:
    own = {"root_certificate": path, "certificate": path, "private_key": path}
    return Site.model_validate(
        {
            "name": "a",
            "data": {"path": "patients.csv"},
            "coordinator": {"address": "127.0.0.1:1", **own},
        }
    )


READERS: dict[str, Callable[[Path], object]] = {
    "study file": load_study,
    "site file": load_site,
    "private key": lambda path: load_private_key(path, SiteError),
    "peers' keys": lambda path: read_pinned_keys(path, SiteError),
    "authority": load_certificate,
    "request": read_request,
    "a site's files": lambda path: credentials_for(site(path).coordinator),
    "kit": lambda path: install(path, site(path)),
    "opening": lambda path: read_opening(path, SiteError),
    "model": load_model,
}


@pytest.mark.parametrize("reader", READERS)
def test_a_pipe_is_explained(tmp_path: Path, reader: str) -> None:
    os.mkfifo(path := tmp_path / "pipe", 0o600)
    with refused(ErosionError):
        READERS[reader](path)


@pytest.mark.parametrize("reader", [r for r in READERS if r not in ("opening", "model")])
def test_a_file_that_is_far_too_large_is_explained(tmp_path: Path, reader: str) -> None:
    path = tmp_path / "file"
    path.touch(0o600)
    os.truncate(path, files.MOST_NAMED_BYTES + 1)
    with refused(ErosionError, "MiB"):
        READERS[reader](path)


def test_a_log_that_is_a_pipe_is_explained(tmp_path: Path) -> None:
    os.mkfifo(path := tmp_path / "sent.jsonl")
    with refused(SiteError):
        verify(path)
