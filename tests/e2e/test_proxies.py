"""Ways to the coordinator that are not straight: an HTTP proxy here, a TLS pass-through there."""

import base64
import re
import shlex
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes

from erosion_client.connection.credentials import connection_error, credentials_for, dial, proxy_for
from erosion_client.preflight.network import check_network
from erosion_client.site_file import CoordinatorAddress, Site, load_site
from erosion_common.errors import SiteError
from erosion_common.settings.base import read_toml
from erosion_common.support.network import free_address
from erosion_server.enrolment.certificates import Authority, issue, new_authority
from erosion_server.enrolment.enrolment import enrol_site, init_federation
from erosion_server.enrolment.federation_folder import Address, FederationFolder
from erosion_server.link import Link
from erosion_server.link.link import make_link
from tests.support.connect_proxy import ConnectProxy, Inspector
from tests.support.enrolled import unpack_kit
from tests.support.patience import PATIENCE, wait_until
from tests.support.small_study import twenty_patients

NAME = "coordinator.erosion.test"  # that no DNS knows
RECIPES = Path(__file__).parents[2] / "docker"


@dataclass(frozen=True)
class Recipe:
    """A documented file for a proxy, and how the proxy is started with one."""

    program: str
    file: str
    listens: str  # as the file says it, and as it is said of another address
    serves: str
    options: str
    top: str = ""  # what only a test needs

    @property
    def path(self) -> str | None:
        return shutil.which(self.program) or shutil.which(self.program, path="/usr/sbin")


NGINX = Recipe(
    "nginx",
    "nginx-pass-through.conf",
    "listen {9092};",
    "server {127.0.0.1:19092};",
    "-c {file} -e {folder}/error.log -g 'daemon off;'",
    "pid {folder}/nginx.pid;\n",
)
HAPROXY = Recipe(
    "haproxy",
    "haproxy-pass-through.cfg",
    "bind {:9092}\n",
    "server coordinator {127.0.0.1:19092}\n",
    "-db -f {file}",
)
SHARED = replace(HAPROXY, file="haproxy-shared-port.cfg", listens="bind {:443}\n")


@pytest.fixture
def link(tmp_path: Path) -> Iterator[Link]:
    keys = FederationFolder(tmp_path / "federation")
    init_federation(keys, Address(hosts=(NAME,), port=9092))
    enrol_site(keys, "a")
    link = make_link((), "127.0.0.1:0", keys)
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


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "Localhost.", "127.0.0.1", "[::1]"])
def test_this_machine_is_dialled_straight_however_it_is_written(
    monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    monkeypatch.setenv("https_proxy", "http://proxy.example.com:3128")
    assert proxy_for(f"{host}:9092", None) is None
    assert credentials_for(CoordinatorAddress(address=f"{host}:9092")).tls is None


@pytest.mark.parametrize(
    ("no_proxy", "address", "is_straight"),
    [
        ("10.0.0.0/8", "10.1.2.3:9092", True),
        ("10.1.2.3/255.0.0.0", "10.9.9.9:9092", True),
        ("fd00::/8", "[fd12::1]:9092", True),
        ("erosion.example.org:9092", "erosion.example.org:9092", True),
        ("erosion.example.org:443", "erosion.example.org:9092", False),
        ("EXAMPLE.ORG", "erosion.example.org:9092", True),
        ("ample.org", "erosion.example.org:9092", False),
        ("*.example.org", "erosion.example.org:9092", True),
        ("localhost 10.1.2.3", "10.1.2.3:9092", True),
        ("10.0.0.0/99, *", "10.1.2.3:9092", True),
        ("[fd12::]/16", "[fd12::1]:9092", True),
        ("10.0.0.0/8:9092", "10.1.2.3:9092", True),
        ("10.2.*", "10.1.2.3:9092", False),
        ("other.org;http://example.org", "erosion.example.org:9092", True),
        ("", "10.1.2.3:9092", False),
    ],
)
def test_what_no_proxy_names_is_dialled_straight(
    monkeypatch: pytest.MonkeyPatch, no_proxy: str, address: str, is_straight: bool
) -> None:
    for proxy, exceptions in (("https_proxy", "no_proxy"), ("All_Proxy", "NO_Proxy")):
        monkeypatch.setenv(proxy, "http://proxy.example.com:3128")
        monkeypatch.setenv(exceptions, no_proxy)
        assert proxy_for(address, None) == (None if is_straight else "proxy.example.com:3128")
        monkeypatch.delenv(proxy)
        monkeypatch.delenv(exceptions)


@pytest.mark.parametrize(
    "proxy",
    [
        "http://user:secret@proxy.example.org",
        "socks5://user:secret@proxy.example.org:1080",
        "http://user:secret@proxy.example.org:99999",
    ],
)
def test_an_environments_proxy_that_cannot_be_used_is_named_with_the_remedy(
    site: Site, monkeypatch: pytest.MonkeyPatch, proxy: str
) -> None:
    monkeypatch.setenv("https_proxy", proxy)
    with pytest.raises(SiteError, match=r"https_proxy names the proxy") as refused:
        credentials_for(site.coordinator)
    assert "secret" not in str(refused.value)
    assert found(site)["DNS"] == "failed"


def _low(head: str) -> str:
    """Names of headers are the same in any case; tokens are not."""
    return re.sub(r"(?im)^proxy-authorization: basic", "proxy-authorization: basic", head)


@pytest.mark.parametrize(
    ("refuses", "remedy"),
    [("407 Proxy Authentication Required", "Basic"), ("403 Forbidden", "network people")],
)
def test_a_proxy_that_refuses_is_named_without_its_password(
    link: Link, site: Site, refuses: str, remedy: str
) -> None:
    with ConnectProxy(link.address, refuses=refuses) as proxy:
        through = by(site, proxy=f"user:secret@{proxy.address}")
        findings = list(check_network(through))
        with (
            pytest.raises(grpc.RpcError) as refused,
            credentials_for(through.coordinator).connect(),
        ):
            pass
    (failed,) = [finding for finding in findings if finding.outcome.value == "failed"]
    assert failed.what == "port"
    assert refuses in failed.text
    trouble = connection_error(refused.value, f"{NAME}:9092", encrypted=True)
    for said in (str(failed.remedy), trouble.text):
        assert remedy in said
    assert "the proxy" in trouble.text
    assert "secret" not in " ".join(f"{f.text} {f.remedy}" for f in findings)


@pytest.mark.parametrize("alpn", [("h2",), ()], ids=["speaks h2", "speaks no h2"])
def test_who_opens_tls_on_the_way_is_named(
    link: Link, site: Site, tmp_path: Path, alpn: tuple[str, ...]
) -> None:
    """A firewall's proxy shows the coordinator's name under an authority of its own."""
    firewall = authority_called("Clinic Web Gateway CA")
    shown = issue(firewall, [NAME], 30)
    with (
        Inspector(shown, link.address, tmp_path, alpn) as inspector,
        ConnectProxy(inspector.address) as proxy,
    ):
        through = by(site, proxy=proxy.address)
        findings = {finding.what: finding for finding in check_network(through)}
        with (
            pytest.raises(grpc.RpcError) as refused,
            credentials_for(through.coordinator).connect(),
        ):
            pass
    assert findings["port"].outcome.value == "ok"
    assert findings["TLS"].outcome.value == "failed"
    assert "CN=Clinic Web Gateway CA" in findings["TLS"].remedy
    trouble = connection_error(refused.value, f"{NAME}:9092", encrypted=True)
    assert trouble.text == findings["TLS"].text
    assert "firewall" in trouble.text
    assert not trouble.is_final  # it may be exempted while the site waits
    assert not inspector.was_opened  # the site said nothing to it, and showed it no certificate


def authority_called(name: str) -> Authority:
    """One that no site trusts."""
    own = new_authority()
    called = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(
        called, called, own.key.public_key(), 1, now, now + timedelta(days=30)
    )
    for extension in own.certificate.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    return replace(own, certificate=builder.sign(own.key, hashes.SHA256()))


def test_a_proxy_that_answers_a_byte_at_a_time_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drip() -> None:
            client, _ = listener.accept()
            with client, suppress(OSError):
                for _ in range(1000):
                    client.sendall(b"x")
                    time.sleep(0.005)

        threading.Thread(target=drip, daemon=True).start()
        gate = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(TimeoutError):
            dial(f"{NAME}:9092", gate, seconds=0.5)


@pytest.mark.parametrize("recipe", [NGINX, HAPROXY, SHARED], ids=lambda recipe: recipe.file)
def test_a_recipe_for_a_proxy_passes_tls_on(
    recipe: Recipe, link: Link, site: Site, tmp_path: Path
) -> None:
    """The documented file, but for its addresses, its folder, and the coordinator's name."""
    if recipe.path is None:
        pytest.skip(f"{recipe.program} is not installed")
    front = free_address()
    text = (RECIPES / recipe.file).read_text().replace("erosion.example.org", NAME)
    for said, address in ((recipe.listens, front), (recipe.serves, link.address)):
        before, _, rest = said.partition("{")
        documented, _, after = rest.partition("}")
        assert text.count(f"{before}{documented}{after}") == 1
        text = text.replace(f"{before}{documented}{after}", f"{before}{address}{after}")
    file = tmp_path / recipe.file
    file.write_text(recipe.top.format(folder=tmp_path) + text)
    options = shlex.split(recipe.options.format(file=file, folder=tmp_path))
    program = subprocess.Popen([recipe.path, *options])
    try:
        with ConnectProxy(front) as proxy:  # stands for the DNS, which would name the proxy
            through = by(site, proxy=proxy.address)
            wait_until(lambda: program.poll() is not None or set(found(through).values()) == {"ok"})
            assert program.poll() is None, f"{recipe.program} has ended"
            connects(through, link)
    finally:
        program.terminate()
        program.wait(PATIENCE)
