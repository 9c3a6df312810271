"""Ways to the coordinator that are not straight: an HTTP proxy here, a TLS pass-through there."""

import base64
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from erosion.client.connection.credentials import credentials_for
from erosion.client.preflight.network import check_network
from erosion.client.site_file import Site, load_site
from erosion.common.errors import SiteError
from erosion.common.settings.base import read_toml
from erosion.experiments.free_ports import free_address
from erosion.server.enrolment.enrolment import enrol_site, init_federation
from erosion.server.enrolment.federation_folder import Address, FederationFolder
from erosion.server.link import Link
from erosion.server.link.open_link import make_link
from tests.support.connect_proxy import ConnectProxy
from tests.support.enrolled import unpack_kit
from tests.support.patience import wait_until
from tests.support.small_study import make_study, twenty_patients

NAME = "coordinator.erosion.test"  # that no DNS knows
NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
RECIPE = Path(__file__).parents[2] / "docker" / "nginx-pass-through.conf"


@pytest.fixture
def link(tmp_path: Path) -> Iterator[Link]:
    keys = FederationFolder(tmp_path / "federation")
    init_federation(keys, Address(hosts=(NAME,), port=9092))
    enrol_site(keys, "a")
    link = make_link(make_study(), "127.0.0.1:0", keys)
    link.start()
    unpack_kit(keys, "a", tmp_path)
    yield link
    link.stop()


@pytest.fixture
def site(link: Link, tmp_path: Path) -> Site:
    path = tmp_path / "a" / "site.toml"
    assert read_toml(path, "site file", SiteError)["coordinator"]["address"] == f"{NAME}:9092"
    (path.parent / "patients.csv").write_text(twenty_patients())
    return load_site(path)


def by(site: Site, **changes: str) -> Site:
    return site.model_copy(update={"coordinator": site.coordinator.model_copy(update=changes)})


def found(site: Site) -> dict[str, str]:
    return {finding.what: finding.outcome.value for finding in check_network(site)}


def connects(site: Site, link: Link) -> None:
    """The whole way: TLS, greeting, and a stream that stands."""
    with credentials_for(site.coordinator).connect() as line:
        assert line.welcome.hospital == "a"
        wait_until(lambda: link.grid.get_node_ids())
        assert line.receive(0.5) is None


def test_a_proxy_in_the_site_file_is_used_by_site_and_check(link: Link, site: Site) -> None:
    with ConnectProxy(link.address) as proxy:
        through = by(site, proxy=proxy.address)
        assert set(found(through).values()) == {"ok"}
        connects(through, link)
    assert len(proxy.asked) >= 2
    assert all(head.startswith(f"CONNECT {NAME}:9092 HTTP/1.1") for head in proxy.asked)


def test_the_environments_proxy_is_used_unless_it_is_excepted(
    link: Link, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ConnectProxy(link.address) as proxy:
        monkeypatch.setenv("https_proxy", f"http://user:pass%21@{proxy.address}")
        assert set(found(site).values()) == {"ok"}
        connects(site, link)
        token = base64.b64encode(b"user:pass!").decode()
        said = [head for head in proxy.asked if f"proxy-authorization: basic {token}" in _low(head)]
        assert said == proxy.asked
        asked = len(proxy.asked)
        monkeypatch.setenv("no_proxy", "erosion.test")
        assert found(site)["DNS"] == "failed"
        assert len(proxy.asked) == asked


def _low(head: str) -> str:
    """Names of headers are the same in any case; tokens are not."""
    return re.sub(r"(?im)^proxy-authorization: basic", "proxy-authorization: basic", head)


def test_a_proxy_that_refuses_is_named_without_its_password(link: Link, site: Site) -> None:
    with ConnectProxy(link.address, refuses="407 Proxy Authentication Required") as proxy:
        findings = list(check_network(by(site, proxy=f"user:secret@{proxy.address}")))
    (failed,) = [finding for finding in findings if finding.outcome.value == "failed"]
    assert failed.what == "port"
    assert "407" in failed.text
    assert "secret" not in " ".join(f"{f.text} {f.remedy}" for f in findings)


@pytest.mark.skipif(NGINX is None, reason="nginx is not installed")
def test_the_recipe_for_nginx_passes_tls_on(link: Link, site: Site, tmp_path: Path) -> None:
    """The documented file, but for its addresses and its folder."""
    front = free_address()
    text = RECIPE.read_text()
    assert "listen 9092;" in text
    assert "server 127.0.0.1:19092;" in text
    text = text.replace("listen 9092;", f"listen {front};")
    text = text.replace("server 127.0.0.1:19092;", f"server {link.address};")
    configuration = tmp_path / "nginx.conf"
    configuration.write_text(f"pid {tmp_path}/nginx.pid;\nerror_log {tmp_path}/error.log;\n{text}")
    assert NGINX is not None
    nginx = subprocess.Popen([NGINX, "-c", configuration, "-p", tmp_path, "-g", "daemon off;"])
    try:
        with ConnectProxy(front) as proxy:  # stands for the DNS, which would name the proxy
            through = by(site, proxy=proxy.address)
            wait_until(lambda: set(found(through).values()) == {"ok"})
            connects(through, link)
    finally:
        nginx.terminate()
        nginx.wait(30)
