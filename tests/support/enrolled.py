"""A federation with TLS and enrolled keys, for tests: its folder, its kits, and its coordinator."""

from pathlib import Path

import tomli_w

from erosion_common.errors import SiteError
from erosion_common.settings.base import read_toml
from erosion_common.study.study import Study
from erosion_server.enrolment.enrolment import enrol_site, init_federation
from erosion_server.enrolment.federation_folder import Address, FederationFolder
from erosion_server.link.link import make_link
from experiments import program
from tests.support.federation import Federation


def make_federation(path: Path, *hospitals: str) -> FederationFolder:
    """A federation on this machine with these hospitals enrolled."""
    folder = FederationFolder(path)
    init_federation(folder, Address(hosts=("127.0.0.1", "localhost"), port=9092))
    for hospital in hospitals:
        enrol_site(folder, hospital)
    return folder


def unpack_kit(folder: FederationFolder, hospital: str, to: Path) -> Path:
    """The folder `to`/`hospital`, as a site unpacks it."""
    return program.unpack_kit(folder.kit(hospital), to)


class EnrolledFederation(Federation):
    """Like `Federation`, and every site has a key; those of the study's hospitals are enrolled."""

    def __init__(self, study: Study, folder: Path) -> None:
        self.keys = make_federation(folder / "federation", *study.hospitals)
        super().__init__(study, folder, make_link(study.hospitals, "127.0.0.1:0", self.keys))

    def site_file(self, name: str, index: int | None = None, *, key_of: str | None = None) -> Path:
        """Unpack the kit of `key_of` (of `name` itself) and fill its site file in."""
        folder = self.folder / (name if index is None else f"{name}-{index}")
        kit = unpack_kit(self.keys, key_of or name, self.folder / "kits")
        folder.mkdir(exist_ok=True)
        for file in ("node.key", "node.crt", "ca.crt"):
            (kit / file).replace(folder / file)
        plain = super().site_file(name, index)
        coordinator = read_toml(kit / "site.toml", "site file", SiteError)["coordinator"]
        values = read_toml(plain, "site file", SiteError)
        values["coordinator"] = {**coordinator, "address": self.link.address}
        plain.write_text(tomli_w.dumps(values))
        return plain
