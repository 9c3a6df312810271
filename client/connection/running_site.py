"""A hospital that answers by its site file as it is, and not as it was when the program started."""

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from erosion.client.connection.app import make_app
from erosion.client.connection.credentials import credentials_for, known_as
from erosion.client.connection.line import SiteLine
from erosion.client.consent.budgets import used_up
from erosion.client.consent.consent import Consent
from erosion.client.records.account import claim, dataset_of
from erosion.client.records.records import Records
from erosion.client.site_file import Site, load_site
from erosion.client.training.hospital import Hospital
from erosion.client.training.limits import allow_only_these
from erosion.common.algorithms import load_method
from erosion.common.errors import ModelError, SiteError
from erosion.common.support.files import version_of

logger = logging.getLogger("erosion.site")

SETTLED_SECONDS = 0.5  # that a changed file stays as it is: half of one may read well, too
MOST_LOOKS = 20  # at a file that changes each time
# What a program that runs keeps: its name, its log, and where its records are.
_KEPT = ("name", "coordinator.address", "records", "log", "compute.state")


class RunningSite:
    """The answers of one hospital.

    Once its site file has changed, nothing is answered by the former one. The connection is made
    anew with the new one; until that can be used, the site stays signed out, and says why.
    """

    def __init__(
        self,
        path: Path,
        site: Site,
        records: Records,
        *,
        secret: bytes,
        version: tuple[int, ...],
    ) -> None:
        """`version`: of the file at `path` before `site` was read from it. Raises SiteError."""
        self._path, self._version = path, version
        self._records, self._secret = records, secret
        self.dataset = ""  # what the account calls the data
        self.certificate_expires: datetime | None = None
        self.news = ""  # of the site file since the program started, in words
        self._take(site)

    def connect(self) -> SiteLine:
        """A connection, not open yet, by the files as they are. Raises SiteError."""
        if self.has_changed():
            self._read_again()
        credentials = credentials_for(self._site.coordinator)
        self.certificate_expires = credentials.expires
        if known_as(credentials) != self.coordinator:  # another authority was installed
            self._take(self._site)
        return credentials.connect()

    def __call__(self, message: Message, context: Context) -> Message:
        """The answer; SiteError where the site file has changed, and nothing may leave."""
        self._check()
        answer = self._app(message, context)
        self._check()
        return answer

    def has_decided(self) -> bool:
        """A study that the coordinator asked about in vain was approved since."""
        return self._consent.has_news()

    def is_repeated(self) -> bool:
        """Whether the last answer was given to the same question before."""
        return self._consent.is_repeated

    def budgets(self) -> list[str]:
        """What is used up, in lines for people here."""
        return [*used_up(self._site, self._records), *self._hospital.disclosed()]

    def study_named(self, digest: str) -> str | None:
        """The name of the approved study that a digest is of, itself or by a part of it."""
        return self._consent.study_named(digest)

    def has_changed(self) -> bool:
        """Whether the site file says something else than was read last, or cannot be read."""
        version = version_of(self._path)
        if version != self._version:
            with suppress(SiteError):
                if not [*_differing(self._site.model_dump(), load_site(self._path).model_dump())]:
                    self._version = version  # a comment, or written again as it was
        return version != self._version

    def _check(self) -> None:
        if self.has_changed():
            raise SiteError(
                f"{self._path} was changed at {_changed_at(self._path)}; it is read again before"
                " anything is answered"
            )

    def _read_again(self) -> None:
        """Go by the changed file. Raises SiteError where that cannot be."""
        version = _settled(self._path)
        was_changed = f"{self._path} was changed at {_changed_at(self._path)}"
        try:
            site = load_site(self._path)
            differing = [*_differing(self._site.model_dump(), site.model_dump())]
            kept = [key for key in differing if key.startswith(_KEPT)]
            if kept:
                raise SiteError(f"{', '.join(kept)}: start `erosion client` anew for that.")
            claim(site)
            self._take(site)
        except SiteError as problem:
            raise SiteError(
                f"{was_changed}, and this site answers nothing until it can go by it. {problem}"
            ) from None
        self._version = version
        self.news = f"changed at {_changed_at(self._path)}: {', '.join(differing)}"
        logger.info("%s and holds from now on: %s", was_changed, ", ".join(differing))

    def _take(self, site: Site) -> None:
        allow_only_these(site.limits)
        _load_methods(site)
        credentials = credentials_for(site.coordinator)
        self.coordinator = known_as(credentials)  # as the records have it
        self.certificate_expires = credentials.expires
        secret = b"" if site.compute.public_order else self._secret
        hospital = Hospital(site, secret, noise_secret=self._secret, records=self._records)
        consent = Consent(site, self._records, self.coordinator)
        self._app: ClientApp = make_app(hospital, consent)
        self._site, self._hospital, self._consent = site, hospital, consent
        self.dataset = dataset_of(site)


def _load_methods(site: Site) -> None:
    """Those of packages that the limits allow, so that the app knows their steps."""
    for name, sha256 in site.limits.installed_methods.items():
        try:
            load_method(name, sha256)
        except ModelError as problem:  # no study that names it can be answered
            logger.error("%s", problem)


def _settled(path: Path) -> tuple[int, ...]:
    """The file's version, once it has been the same for a moment. Raises SiteError."""
    version = version_of(path)
    for _look in range(MOST_LOOKS):
        time.sleep(SETTLED_SECONDS)
        seen, version = version, version_of(path)
        if seen == version:
            return version
    raise SiteError(f"{path} is being written all the time")


def _changed_at(path: Path) -> str:
    """When the file was written or put there, by this machine's clock."""
    try:
        changed = datetime.fromtimestamp(path.stat().st_ctime)
    except OSError:  # it is gone
        changed = datetime.now()
    return f"{changed:%H:%M}"


def _differing(
    before: Mapping[str, Any], after: Mapping[str, Any], place: str = ""
) -> Iterator[str]:
    """Which keys of a site file are not the same: "limits.studies"."""
    for key in {**before, **after}:
        old, new = before.get(key), after.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _differing(old, new, f"{place}{key}.")
        elif old != new:
            yield f"{place}{key}"
