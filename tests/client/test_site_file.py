"""The site file, and the limits in it."""

import hashlib
import resource
from pathlib import Path

import pytest
import tomli_w

from erosion_client.connection.credentials import credentials_for
from erosion_client.dataset.load import load_patients
from erosion_client.dataset.sources.table_file import TableFile
from erosion_client.preflight.check import WEAKER, weaker_values
from erosion_client.records.account import dataset_of
from erosion_client.site_file import CoordinatorAddress, Site, load_site
from erosion_client.training.limits import check_limits, check_study
from erosion_common.errors import DataError, Refusal, SiteError
from erosion_common.program.command_line import main
from tests.support.said import raises
from tests.support.small_study import counts, make_site, make_study

DATA = {"path": "patients.csv"}
WHOLE = """
name = "st-anna"

[data]
path = "export/patients.csv"
separator = ";"
decimal = ","

[data.columns]
age = "Alter"

[data.values.sex]
M = 1
W = 0

[coordinator]
address = "coordinator.example.org:9092"
root_certificate = "keys/ca.crt"
certificate = "keys/node.crt"
private_key = "keys/node.key"

[limits]
min_patients = 30
studies = ["heart-*"]
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "site.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_paths_in_a_site_file_are_relative_to_it(tmp_path: Path) -> None:
    site = load_site(written(tmp_path, WHOLE))
    assert isinstance(site.data, TableFile)
    assert site.data.path == tmp_path / "export/patients.csv"
    assert site.coordinator.root_certificate == tmp_path / "keys/ca.crt"
    assert site.coordinator.private_key == tmp_path / "keys/node.key"
    assert site.data.local_name("age") == "Alter"
    assert site.data.local_name("sex") == "sex"
    assert site.data.values == {"sex": {"M": "1", "W": "0"}}
    assert (site.limits.min_patients, site.limits.min_local_steps) == (30, 2)
    assert (site.compute.threads, site.compute.device) == (1, "cpu")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("min_patients = 30", "min_patient = 30", "limits.min_patient is not a known key; did you"),
        ('name = "st-anna"', 'name = "St Anna"', "name = 'St Anna'; use up to 48 small letters"),
        (
            "path = ",
            'source = "tabel"\npath = ',
            "data.source = 'tabel'; it must be one of 'table',",
        ),
        (":9092", "", "coordinator.address = 'coordinator.example.org'; write it as"),
        ("coordinator.example.org:", "::1:", "coordinator.address = '::1:9092'; write it as"),
        ("coordinator.example.org:", "[::1::2]:", "coordinator.address = '[::1::2]:9092'; "),
        (":9092", ":99999", "the port must be from 1 to 65535"),
        ('separator = ";"', 'separator = "::"', "data.separator = '::'; give one character"),
        ('separator = ";"', 'separator = "§"', "data.separator = '§'; give one character"),
        ('separator = ";"', 'separator = ","', "separator and decimal are both ','"),
        ("[limits]", "[log]\nkeep_days = 1000000000\n[limits]", "log.keep_days = 1000000000; it"),
        (
            "[limits]",
            "[limits]\nmin_summed = 1000000000",
            "limits.min_summed = 1000000000; it must",
        ),
        ("[limits]", '[compute]\ndevice = "cuda:999"\n[limits]', "compute.device = 'cuda:999'; it"),
        (":9092", "..org:9092", "63 characters"),
        ("[limits]", 'proxy = "a..org:1"\n[limits]', "63 characters"),
        ("separator = ", 'encoding = "rot13"\nseparator = ', "data.encoding = "),
        ("separator = ", 'encoding = "klingon"\nseparator = ', "data.encoding = "),
        ('[coordinator]\naddress = "coordinator.example.org:9092"\nroot', "[old]\nroot", "missing"),
    ],
)
def test_a_wrong_key_is_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in WHOLE
    with pytest.raises(SiteError) as problem:
        load_site(written(tmp_path, WHOLE.replace(old, new)))
    assert message in str(problem.value)


@pytest.mark.parametrize(
    ("table", "key"),
    [("", "records"), ("data", "path"), ("compute", "state"), ("coordinator", "private_key")],
)
def test_a_path_with_a_nul_is_named(tmp_path: Path, table: str, key: str) -> None:
    raw = {"name": "a", "data": dict(DATA), "coordinator": {"address": "127.0.0.1:1"}}
    place = raw.setdefault(table, {}) if table else raw
    assert isinstance(place, dict)
    place[key] = "a\0b.csv"
    path = written(tmp_path, tomli_w.dumps(raw))
    with raises(SiteError, f"{key} =", r"\x00"):
        load_site(path)


def test_data_in_a_circle_of_links_are_named(tmp_path: Path) -> None:
    loop = tmp_path / "loop.csv"
    loop.symlink_to(loop)
    site = make_site(tmp_path, None, file="loop.csv")
    assert dataset_of(site) == hashlib.sha256(str(loop).encode()).hexdigest()[:16]
    assert site.data.revision()
    with raises(DataError, "loop.csv", "cannot"):
        load_patients(site, make_study())


def test_a_home_that_is_nobodys_is_named_with_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_text(WHOLE.replace("export/", "~nobody-here/"))
    with raises(SiteError, "Write", "whole"):
        load_site(path)


@pytest.mark.parametrize("password", ["hush hush", "hu'hush", 'hu\\"hush', "hush/hush@hush"])
def test_a_proxys_password_is_in_no_message(tmp_path: Path, password: str) -> None:
    path = tmp_path / "site.toml"
    proxy = f'proxy = "user:{password}@proxy.example.org"  # without its port'
    path.write_text(WHOLE.replace("[limits]", f"{proxy}\n[limits]"))
    with raises(SiteError, "proxy.example.org") as refused:
        load_site(path)
    assert "hush" not in str(refused.value)


def test_a_proxys_password_is_in_no_repr() -> None:
    address = {"address": "127.0.0.1:9092", "proxy": "user:hush@proxy.example.org:3128"}
    coordinator = CoordinatorAddress.model_validate(address)
    credentials = credentials_for(coordinator)
    assert credentials.proxy == address["proxy"]
    for thing in (coordinator, credentials):
        assert "hush" not in f"{thing!r} {thing!s}"


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"min_patients": 13}, "fewer training patients than limits.min_patients = 13"),
        ({"min_cell": 13}, "fewer training patients than limits.min_cell = 13"),
        ({"min_class": 13}, "but fewer than limits.min_class = 13 (remedy: fewer classes"),
        ({"min_local_steps": 6}, "fewer local steps there than limits.min_local_steps = 6"),
        ({"min_batch_size": 5}, "batches of 4; limits.min_batch_size = 5"),
        ({"max_rounds": 2}, "3 rounds; limits.max_rounds = 2"),
        ({"studies": ["heart-*", "lung"]}, "study 'small'; limits.studies accepts only heart-*, l"),
        ({"as_user": False}, "personal model go to the coordinator; limits.as_user = false"),
        ({"models": ["mlp"]}, "model 'logistic'; limits.models accepts only mlp"),
    ],
)
def test_each_limit_refuses(tmp_path: Path, limits: dict[str, object], reason: str) -> None:
    with pytest.raises(Refusal) as refusal:
        check_limits(make_site(tmp_path, limits=limits), make_study(), counts(12))
    assert reason in str(refusal.value)
    assert refusal.value.public == str(refusal.value)


def test_the_files_order_is_refused_where_the_order_is_the_sites_secret(tmp_path: Path) -> None:
    training = {"steps": 5, "batch_size": 4, "order": "sequential"}
    with raises(Refusal, '"sequential"', "compute.public_order = false"):
        check_limits(make_site(tmp_path), make_study(training=training), counts(12))
    testbed = make_site(tmp_path, compute={"public_order": True})
    check_limits(testbed, make_study(training=training), counts(12))


def test_one_step_a_round_is_refused_by_default(tmp_path: Path) -> None:
    study = make_study(training={"epochs": 1, "batch_size": 64})
    with raises(Refusal, "fewer local", "limits.min_local_steps = 2"):
        check_limits(make_site(tmp_path), study, counts(50))


def test_every_reason_is_given_at_once(tmp_path: Path) -> None:
    site = make_site(tmp_path, limits={"models": ["mlp"], "max_rounds": 1})
    with raises(Refusal, "models", ";", "max_rounds", ";", "min_patients"):
        check_limits(site, make_study(), counts(3))


def test_a_site_that_the_study_does_not_name_declines(tmp_path: Path) -> None:
    with raises(Refusal, "study's", "hospitals"):
        check_study(make_site(tmp_path, name="c"), make_study())


def test_an_ipv6_address_is_dialled_as_certificates_have_it() -> None:
    for spelt in ("[FD00:0:0:0:0:0:0:1]:9092", "[fd00::0001]:9092", "[fd00::1]:9092"):
        assert CoordinatorAddress(address=spelt).address == "[fd00::1]:9092"


SITE = 'name = "b"\ndata.path = "b.csv"\ncoordinator.address = "127.0.0.1:1"\n'

WEAK = """\
[approval]
automatic = "within_limits"
[compute]
public_order = true
[limits]
min_batch_size = 1
min_local_steps = 1
min_cell = 3
[budget]
rounds = 1000000
"""

KEYS = (
    "approval.automatic",
    "compute.public_order",
    "limits.min_batch_size",
    "limits.min_local_steps",
    "limits.min_cell",
    "budget.rounds",
)


def test_every_limit_says_which_way_it_is_weaker() -> None:
    keys = " ".join(line for lines in WEAKER.values() for line in lines).split()
    every = []
    for table in ("limits", "approval", "budget", "log", "compute", "coordinator"):
        kind = Site.model_fields[table].annotation
        assert kind is not None
        every += [f"{table}.{key}" for key in kind.model_fields]
    assert sorted(keys) == sorted(every)


def test_weaker_values_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "b.csv").write_text("x,y\n1,no\n2,yes\n")
    file = tmp_path / "site.toml"
    file.write_text(SITE + WEAK)
    main(["check", str(file)])
    said = " ".join(capsys.readouterr().out.split())
    for key in KEYS:
        assert f"{key} = " in said
    file.write_text(SITE)
    main(["check", str(file)])
    assert "(by default" not in capsys.readouterr().out


def test_a_file_of_defaults_and_one_that_is_stricter_have_none() -> None:
    values = {"name": "b", "data": {"path": "b.csv"}, "coordinator": {"address": "h:1"}}
    assert not [*weaker_values(Site.model_validate(values))]
    strict = {"min_cell": 20, "epsilon": 1.0, "max_rounds": 5, "largest_share": 0.2}
    assert not [*weaker_values(Site.model_validate({**values, "limits": strict}))]
    for budget in (None, 0.5, 1.0):
        both = {"limits": strict, "budget": {"epsilon": budget}}
        assert not [*weaker_values(Site.model_validate({**values, **both}))]
    assert not [*weaker_values(Site.model_validate({**values, "budget": {"epsilon": 8}}))]
    both = {"limits": strict, "budget": {"epsilon": 8}}
    ((key, _),) = weaker_values(Site.model_validate({**values, **both}))
    assert key == "budget.epsilon"
    proxy = {"address": "h:1", "proxy": "user:secret@p:1"}
    ((key, said),) = weaker_values(Site.model_validate({**values, "coordinator": proxy}))
    assert key == "coordinator.proxy"
    assert "secret" not in said


def test_no_program_leaves_its_memory_on_the_disk(tmp_path: Path) -> None:
    main(["check", str(tmp_path / "none.toml")])
    assert resource.getrlimit(resource.RLIMIT_CORE)[0] == 0
    root = Path(__file__).parents[2]
    for unit in (root / "docker/systemd").glob("*.service"):
        assert "LimitCORE=0" in unit.read_text().splitlines()
    for compose in (root / "docker-compose.yml", *(root / "docker").glob("*.yml")):
        services = compose.read_text()
        assert services.count("ulimits: {core: 0}") == services.count("pids_limit:")
