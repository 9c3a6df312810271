"""The account of a hospital's data: where its records and its secret are kept.

It belongs to one hospital and one data set, and not to a kit: a second kit for the same patients
finds it by a list in the home of the operating system's account (`XDG_STATE_HOME`), so that no
budget starts again. Where federations name the hospital differently, `compute.account` is its name
here.

The site's secret seeds its local randomness: nobody else can repeat the draws. If the order of the
mini-batches were public, updates from chosen parameters would be a system of linear equations in
the patients' records. A secret order stops that, but not attacks that need no order: see
docs/threat-model.md.
"""

import fcntl
import hashlib
import json
import logging
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from erosion_client.dataset.sources.data_source import DataSource
from erosion_common.errors import SiteError
from erosion_common.support.files import (
    exposure,
    make_private_folder,
    read_named,
    write_atomically,
    write_private,
)
from erosion_common.support.network import is_loopback

if TYPE_CHECKING:
    from erosion_client.site_file import Site

logger = logging.getLogger("erosion.site")

_MOST_BYTES = 2**20  # of the list
_LOCK_SECONDS = 10.0  # for another program to finish its write


@dataclass(frozen=True, slots=True)
class _Account:
    """One line of the list."""

    hospital: str
    place: str  # SHA-256 of the data's location
    content: list[str | int] | None  # size and SHA-256 of a file, to recognise a copy
    dataset: str  # name of the data in the account
    folder: str


def dataset_of(site: "Site") -> str:
    """Return the account's name of a site's data. Raises SiteError where the list is damaged."""
    if site.compute.state is None:
        return place_of(site.data)
    known = _known(site.account, site.data)
    if known is None and (copied := _copied(site.account, site.data)) is not None:
        known = copied if _is_folder(site, copied) else None
    return place_of(site.data) if known is None else known.dataset


def other_accounts(site: "Site") -> Iterator[tuple[str, str]]:
    """Yield what other accounts of these data mean, and the remedy.

    One may be of the same data in another place; one in this place of another hospital, unless this
    site file says which account it has.
    """
    known = _known(site.account, site.data)
    copied = _copied(site.account, site.data) if known is None else None
    if copied is not None and not _is_folder(site, copied):
        yield (
            f"these data are a copy of those with budgets in {copied.folder}",
            f"so that both kits have one account, write state = '{Path(copied.folder).parent}'"
            " under [compute] in this site file",
        )
    if site.compute.account is not None:
        return
    for other in _accounts():
        if other.place == place_of(site.data) and other.hospital != site.account:
            yield (
                f"data of this place have budgets already, as those of {other.hospital} in"
                f" {other.folder}",
                f"if it is the same hospital by another name, write account = '{other.hospital}'"
                " under [compute] in this site file, so that both count together; if the patients"
                f" are others, write account = '{site.account}'",
            )
            return


def state_folder(hospital: str, data: DataSource, stated: Path | None, usual: Path) -> Path:
    """Return compute.state; its folder HOSPITAL is the account.

    `stated`: the site file's; `usual`: for a first kit. Raises SiteError where the account is in
    another folder than the site file's.
    """
    known = _known(hospital, data)
    if known is None:
        return stated or usual
    folder = Path(known.folder)
    if stated is not None and (stated / hospital).resolve() != folder.resolve():
        raise SiteError(
            f"compute.state = {str(stated)!r}, but approvals and budgets of {hospital} for"
            f" these data are kept in {folder}",
            remedy="Leave compute.state out of the site file; or, to move them, stop every site"
            f" program of {hospital} and move that folder to {stated / hospital}.",
        )
    return usual if (usual / hospital).resolve() == folder.resolve() else folder.parent


def claim(site: "Site") -> None:
    """Note that a site's data have their account in its folder, which is made if need be."""
    folder = site.consent_folder
    place = _list()
    if place is None or site.compute.state is None:
        return
    try:
        for each in (folder, place.parent):
            if not each.exists():
                make_private_folder(each)
        with _locked(place.parent / "accounts.lock"):
            if (known := _known(site.account, site.data)) is not None:
                if not _is_folder(site, known):
                    raise SiteError(
                        f"Another program began the records of these data in {known.folder} just"
                        " now",
                        remedy="Start this one again; it will use them.",
                    )
                return
            for other in other_accounts(site):
                logger.warning("%s; %s", *other)
            _add(place, site)
    except OSError as problem:
        logger.warning(
            "%s cannot be written (%s), so a second kit for these data would not find the budgets"
            " in %s",
            place,
            problem.strerror,
            folder,
        )


def _add(place: Path, site: "Site") -> None:
    mine, others = place_of(site.data), []
    for account in _read(place):
        if Path(account.folder).is_dir():
            others.append(account)
        elif (account.hospital, account.place) == (site.account, mine):
            logger.warning(
                "the approvals and budgets of these data were kept in %s, which is gone: they"
                " begin again in %s",
                account.folder,
                site.consent_folder,
            )
    account = _Account(
        hospital=site.account,
        place=mine,
        content=_content(site.data),
        dataset=dataset_of(site),
        folder=str(site.consent_folder.resolve()),
    )
    text = json.dumps([asdict(each) for each in [*others, account]], indent=1)
    write_atomically(place, text + "\n", mode=0o600)


def _known(hospital: str, data: DataSource) -> _Account | None:
    place = place_of(data)
    return next((each for each in _accounts(hospital) if each.place == place), None)


def _copied(hospital: str, data: DataSource) -> _Account | None:
    """Return the account of a file with the same content in another place."""
    path = getattr(data, "path", None)
    size = path.stat().st_size if path is not None and path.is_file() else None
    alike = [each for each in _accounts(hospital) if each.content and each.content[0] == size]
    content = _content(data) if alike else None
    return next((account for account in alike if account.content == content), None)


def _accounts(hospital: str | None = None) -> list[_Account]:
    """Return the listed accounts that have a folder, of one hospital or (None) of all."""
    place = _list()
    found = [] if place is None else _read(place)
    return [
        each for each in found if hospital in (None, each.hospital) and Path(each.folder).is_dir()
    ]


def _is_folder(site: "Site", account: _Account) -> bool:
    return Path(account.folder).resolve() == site.consent_folder.resolve()


def _list() -> Path | None:
    """Return the list's path; None: this account of the operating system has no home."""
    folder = Path(os.environ.get("XDG_STATE_HOME", ""))
    try:
        if not folder.is_absolute():  # which the XDG specification says to ignore
            folder = Path("~/.local/state").expanduser()
    except RuntimeError:
        return None
    return folder / "erosion" / "accounts.json"


def _read(place: Path) -> list[_Account]:
    try:
        if place.stat().st_size > _MOST_BYTES:
            raise ValueError(f"it has more than {_MOST_BYTES} bytes")
        accounts = [_Account(**account) for account in json.loads(read_named(place).decode())]
        if not all(isinstance(each.folder, str) for each in accounts):
            raise TypeError("a folder is no text")
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []
    except (OSError, ValueError, TypeError, RecursionError) as problem:
        raise SiteError(
            f"{place}, which says where this account's hospitals keep their budgets, cannot be"
            f" read ({problem})",
            remedy="Restore it, or delete it: each site notes itself again as it starts.",
        ) from None
    return accounts


def place_of(data: DataSource) -> str:
    """Return the name of where the data are, by which a second kit is recognised."""
    path = getattr(data, "path", None)  # a database has an address instead
    place = os.path.realpath(path) if path is not None else _one_form(getattr(data, "url", ""))
    return hashlib.sha256(place.encode(errors="surrogateescape")).hexdigest()[:16]


_USUAL_PORTS = {"postgresql": 5432, "mysql": 3306, "mariadb": 3306, "mssql": 1433, "oracle": 1521}


def _one_form(url: str) -> str:
    """Return a database's address however it is written: no account, driver or options."""
    kind, _, rest = url.partition("://")
    kind = kind.partition("+")[0].lower()
    server, _, database = rest.partition("?")[0].rpartition("@")[2].partition("/")
    if kind == "sqlite":
        return os.path.realpath(database)
    server = server.lower().removesuffix(f":{_USUAL_PORTS.get(kind)}")
    if not server:  # the options name it
        return url
    host, colon, port = server.partition(":") if "]" not in server else (server, "", "")
    if is_loopback(f"{host}:0"):
        host = "localhost"
    return f"{kind}://{host.rstrip('.')}{colon}{port}/{database}"


def _content(data: DataSource) -> list[str | int] | None:
    """Return size and SHA-256 of a file; None for folders, databases, and unreadable files."""
    path = getattr(data, "path", None)
    try:
        if path is None or not path.is_file():
            return None
        with path.open("rb") as file:
            return [path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest()]
    except OSError:
        return None


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600)) as file:
        end = time.monotonic() + _LOCK_SECONDS
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.05)
        yield


SECRET_NAME = "secret.key"
NUM_BYTES = 32


def site_secret(folder: Path) -> bytes:
    """Read `folder`/secret.key, or draw it the first time. Raises SiteError."""
    path = folder / SECRET_NAME
    try:
        if not path.exists():
            if not folder.exists():
                make_private_folder(folder)
            write_private(path, secrets.token_bytes(NUM_BYTES), first_stays=True)
        secret, exposed = read_named(path), exposure(path)
    except OSError as problem:
        raise SiteError(
            f"The site's secret {path} cannot be used ({problem.strerror})",
            remedy="Name a folder that can be written to: compute.state in the site file.",
        ) from None
    if exposed:
        raise SiteError(f"The site's secret {path} is not private: {exposed}")
    if len(secret) != NUM_BYTES:
        raise SiteError(
            f"The site's secret {path} has {len(secret)} bytes instead of {NUM_BYTES}",
            remedy="Restore it from a backup: without it no earlier patient is recognised.",
        )
    return secret
