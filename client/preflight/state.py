"""Checks that a site can write where it keeps what it must not forget, and read what it kept."""

import os
from collections.abc import Callable
from contextlib import closing
from errno import EACCES
from pathlib import Path
from tempfile import TemporaryDirectory

from erosion.client.cells import cell_book
from erosion.client.cells.cell_book import CellBook
from erosion.client.consent import site_secret, store
from erosion.client.consent.account import COPY, copied_from
from erosion.client.consent.store import ConsentStore
from erosion.client.finding import Finding, failed, ok, warning
from erosion.client.privacy import privacy_ledger
from erosion.client.privacy.privacy_ledger import PrivacyLedger
from erosion.client.sealed import sum_ledger
from erosion.client.sealed.sealed_steps import FOLDER as SEALED
from erosion.client.sealed.sum_ledger import SumLedger
from erosion.client.site_file import Site
from erosion.common.errors import SiteError

Book = ConsentStore | CellBook | PrivacyLedger | SumLedger


def check_state(site: Site) -> Finding:
    """The site's secret and its books, as far as it has them; nothing is left behind."""
    what, folder = "state", site.consent_folder
    books: dict[Path, Callable[[Path], Book]] = {
        folder / store.FILE_NAME: ConsentStore,
        folder / cell_book.FILE_NAME: CellBook,
        folder / privacy_ledger.FILE_NAME: PrivacyLedger,
        folder / SEALED / sum_ledger.NAME: SumLedger,
    }
    try:
        try_to_write(folder)
        if (folder / site_secret.FILE_NAME).exists():
            site_secret.site_secret(folder)
        for path, opened in books.items():
            if path.exists():
                if not os.access(path, os.W_OK):
                    raise PermissionError(EACCES, os.strerror(EACCES), str(path))
                with closing(opened(path.parent)):
                    pass
    except OSError as problem:
        return failed(
            what,
            f"{folder} cannot be used ({problem.strerror}), so what is answered cannot be noted",
            "give this account the folder and its files, or name another with compute.state",
        )
    except SiteError as problem:
        text, _, remedy = str(problem).partition(". ")
        return failed(what, text, remedy)
    if (copied := copied_from(site)) is not None:
        text, _, remedy = COPY.format(folder=copied, state=copied.parent).partition(". ")
        return warning(what, text, remedy)
    return ok(what, f"{folder} can be written")


def try_to_write(folder: Path) -> None:
    """Make something in `folder`, or where it would be made, and remove it. Raises OSError."""
    place = folder
    while not place.exists():
        place = place.parent
    with TemporaryDirectory(dir=place):
        pass
