"""A stock strategy and a ClientApp that the sites installed, over our line with mutual TLS."""

import importlib
import json
import logging
import re
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from erosion_client.connection.agent import Until
from erosion_client.connection.serve import InstalledApp, serve_app
from erosion_client.site_file import AppSite, load_app_site, load_site
from erosion_common.errors import ModelError, SiteError, StudyError
from erosion_common.learning.networks import Resnet18
from erosion_common.support.network import free_address
from erosion_common.support.software import load_app
from erosion_server.coordination.run_app import run_app, run_config_of
from tests.support.enrolled import make_federation, unpack_kit
from tests.support.flower_grid import InProcessGrid, node_of
from tests.support.forked import Forked
from tests.support.patience import PATIENCE
from tests.support.processes import start
from tests.support.programs import print_into

APP = Path(__file__).with_name("app")
ROUNDS = 3
SITES = ("north", "south", "west")


@pytest.fixture
def own_app(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(APP))


def over_our_line(folder: Path, app: str, client_app: str, rounds: int) -> list[dict[str, Any]]:
    """Run the apps at a coordinator and three sites, a process each; return north's log."""
    federation, address = make_federation(folder / "federation", *SITES), free_address()
    place = ["--federation", str(federation.path), "--address", address]
    commands = {"server": ["server", "--app", app, "--run-config", f"rounds={rounds}", *place]}
    for number, name in enumerate(SITES):
        site = write_app_site(unpack_kit(federation, name, folder), name, address, number)
        commands[name] = ["client", str(site), "--app", client_app, "--until-study-ends"]
    with ExitStack() as stack:
        programs = []
        for name, command in commands.items():
            programs.append(Forked(name, command, folder / f"{name}.log"))
            stack.callback(programs[-1].close)
        for program in programs:
            assert program.wait() == 0, program.text()
    return sent_by_north(folder)


def in_one_process(
    folder: Path, name: str, rounds: int, server_module: str = ""
) -> list[dict[str, Any]]:
    """The same with sites in threads; returns north's log."""
    federation = make_federation(folder / "federation", *SITES)
    address = free_address()
    client = load_app(f"own_app.{name}:client_app", ClientApp, SiteError)
    server = load_app(f"own_app.{server_module or name}:server_app", ServerApp, StudyError)
    threads = []
    for number, site in enumerate(SITES):
        file = write_app_site(unpack_kit(federation, site, folder), site, address, number)
        given = (load_app_site(file), client, Until(study_ends=True))
        threads.append(threading.Thread(target=serve_app, args=given, daemon=True))
        threads[-1].start()
    run_app(server, {"rounds": rounds}, address, federation)
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    return sent_by_north(folder)


def sent_by_north(folder: Path) -> list[dict[str, Any]]:
    sent = (folder / "north" / "records" / "north" / "sent.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in sent.splitlines()]


def test_stock_fedavg_over_our_line_gives_what_it_gives_anywhere(
    tmp_path: Path, own_app: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, expected = tmp_path / "out.json", tmp_path / "expected.json"
    apps = ("own_app.fedavg_app:app", "own_app.client_app:app")
    monkeypatch.setenv("OWN_APP_OUT", str(out))
    sent = over_our_line(tmp_path, *apps, ROUNDS)
    figures = json.loads(out.read_text(encoding="utf-8"))
    app = load_app("own_app.client_app:app", ClientApp, SiteError)
    grid = InProcessGrid({n: node_of(app, n) for n in range(3)})
    monkeypatch.setenv("OWN_APP_OUT", str(expected))
    server_app = load_app("own_app.fedavg_app:app", ServerApp, StudyError)
    server_app(grid, Context(1, 1, {}, RecordDict(), {"rounds": ROUNDS}))
    for name, values in json.loads(expected.read_text(encoding="utf-8"))["arrays"].items():
        np.testing.assert_allclose(figures["arrays"][name], values, rtol=1e-5, atol=1e-7)
    assert len(figures["seconds"]) == ROUNDS
    # A line for each training and each evaluation, and its goodbye.
    assert [line["kind"] for line in sent] == [*["train", "evaluate"] * ROUNDS, "query.notice"]
    assert "arrays/0.weight" in sent[0]["arrays"]


@pytest.fixture
def flowers_log(
    own_app: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> pytest.LogCaptureFixture:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)  # our programs end that
    caplog.set_level(logging.INFO, logger="flwr")
    return caplog


def test_an_app_with_server_fn_runs_over_our_line_and_its_log_is_its_output(
    tmp_path: Path, flowers_log: pytest.LogCaptureFixture
) -> None:
    in_one_process(tmp_path, "quickstart", 2)
    # Sites move the model by 0, 1 and 2, so that every round moves the mean by 1.
    assert "{'moved': [(1, 1.0), (2, 2.0)]}" in flowers_log.text


def last(name: str, said: str) -> float:
    """A figure of the last round, as Flower's log ends with it."""
    return float(re.findall(rf"'{name}': '([0-9.e+-]+)'", said)[-1])


# The sites are threads here, and an app that silences a warning does so for all or for none.
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("app", ["pytorch_app", "sklearn_app"])
def test_quickstarts_run_over_our_line_with_weight_erosion(
    tmp_path: Path,
    app: str,
    flowers_log: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTHER_APP", app)
    sent = in_one_process(tmp_path, app, 3, "erosion_app")
    eroded = flowers_log.text
    flowers_log.clear()
    assert {line["kind"] for line in sent} == {"train", "evaluate", "query.notice"}
    assert last("weight-west", eroded) < last("weight-south", eroded) < 1.0
    assert "Traceback" not in eroded
    module = importlib.import_module(f"own_app.{app}")
    grid = InProcessGrid({n: node_of(module.client_app, n) for n in range(3)})
    module.server_app(grid, Context(1, 1, {}, RecordDict(), {"rounds": 3}))  # its own FedAvg
    averaged = last("eval_acc", flowers_log.text)
    assert 0.5 < averaged < 0.8  # west, whose targets are swapped, included
    assert last("eval_acc", eroded) > averaged  # of north's patients, of all


def test_a_query_of_pandas_runs_over_our_line(
    tmp_path: Path, own_app: None, capsys: pytest.CaptureFixture[str]
) -> None:
    sent = in_one_process(tmp_path, "pandas_app", 2)
    printed = re.findall(r"round \d: .*", capsys.readouterr().out)
    assert printed == ["round 1: 270 270", "round 2: 270 270"]
    assert [line["kind"] for line in sent][:2] == ["query", "query"]


def test_secure_aggregation_as_a_mod_runs_over_our_line(
    tmp_path: Path, flowers_log: pytest.LogCaptureFixture
) -> None:
    in_one_process(tmp_path, "secagg_app", 2)
    moved = flowers_log.text.partition("moved")[2]
    found = [float(n) for n in re.findall(r"\(\d, ([0-9.]+)\)", moved)]
    assert found[:2] == pytest.approx([1.0, 2.0], abs=0.01)  # the mean of 0, 1 and 2 a round


def write_app_site(folder: Path, name: str, address: str, number: int) -> Path:
    """The kit's certificates, and no word of a hospital's data."""
    path = folder / "app.toml"
    path.write_text(
        f'name = "{name}"\n\n[coordinator]\naddress = "{address}"\n'
        'root_certificate = "ca.crt"\ncertificate = "node.crt"\nprivate_key = "node.key"\n\n'
        f"[app]\npartition-id = {number}\n",
        encoding="utf-8",
    )
    return path


SITE = AppSite.model_validate(
    {"name": "north", "coordinator": {"address": "127.0.0.1:1"}, "app": {"partition-id": 3}}
)


def ask(app: InstalledApp, run: int, config: dict[str, Any] | None = None) -> Message:
    importlib.import_module("tests.support.flower_grid")  # makes messages possible here
    request = Message(RecordDict({"arrays": ArrayRecord({})}), 2, "train")
    return app(request, Context(run, 2, {}, RecordDict(), dict(config or {})))


def test_an_app_finds_its_site_and_the_settings_of_its_run() -> None:
    client, seen = ClientApp(), []

    @client.train()
    def train(message: Message, context: Context) -> Message:
        seen.append((dict(context.node_config), dict(context.run_config)))
        return Message(RecordDict(), reply_to=message)

    ask(InstalledApp(client, SITE), run=1, config={"lr": 0.5})
    assert seen == [({"name": "north", "partition-id": 3}, {"lr": 0.5})]


def test_the_state_lasts_for_the_run() -> None:
    client, seen = ClientApp(), []

    @client.train()
    def train(message: Message, context: Context) -> Message:
        seen.append(len(context.state))
        context.state[str(len(context.state))] = ArrayRecord({})
        return Message(RecordDict(), reply_to=message)

    app = InstalledApp(client, SITE)
    for run in (1, 1, 2, 1):
        ask(app, run)
    assert seen == [0, 1, 0, 2]


def test_an_exception_of_the_app_leaves_the_site_without_its_words() -> None:
    client = ClientApp()

    @client.train()
    def train(_message: Message, _context: Context) -> Message:
        raise ValueError("patient 4711 has no age")

    reply = ask(InstalledApp(client, SITE), run=1)
    assert reply.has_error()
    assert "ValueError" in str(reply.error.reason)
    assert "4711" not in str(reply.error.reason)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("own_app", "write it as PACKAGE:APP"),
        ("no_such_package.client:app", "no module 'no_such_package'"),
        ("own_app.client_app:nothing", "is nothing, expected a ClientApp"),
        ("own_app.server_app:app", "is a ServerApp, expected a ClientApp"),
    ],
)
def test_an_app_that_is_not_installed_is_named(own_app: None, name: str, words: str) -> None:
    with pytest.raises(SiteError, match=words):
        load_app(name, ClientApp, SiteError)


TORCHVISION = 'raise RuntimeError("operator torchvision::nms does not exist")\n'


def use_torchvision(output: Path) -> None:
    """As an app's site does, and as a model that is based on it."""
    print_into(output)
    calls: list[tuple[type[Exception], Callable[[], object]]] = [
        (SiteError, lambda: load_app("pictures_app:app", ClientApp, SiteError)),
        (ModelError, lambda: Resnet18().build((3, 32, 32), 2)),
    ]
    for kind, call in calls:
        try:
            call()
        except kind as problem:
            print(*str(problem).split())


def test_a_torchvision_that_does_not_fit_torch_is_named_with_the_command_that_mends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torchvision.py").write_text(TORCHVISION)
    (tmp_path / "pictures_app.py").write_text("import torchvision\n")
    mends = "pip install --force-reinstall torch=="
    monkeypatch.syspath_prepend(tmp_path)
    process = start(use_torchvision, tmp_path / "said")
    process.join(PATIENCE)
    said = (tmp_path / "said").read_text().splitlines()
    assert len(said) == 2, said
    assert all("torchvision::nms" in line and mends in line for line in said)


def test_settings_of_a_run_are_values_as_in_toml() -> None:
    text = 'rounds=20 lr=0.1 name="two words" quick=true'
    assert run_config_of(text) == {"rounds": 20, "lr": 0.1, "name": "two words", "quick": True}
    assert run_config_of("") == {}
    with pytest.raises(StudyError, match="'north' cannot be read"):
        run_config_of("lr=0.1 north")
    with pytest.raises(StudyError, match="neither a text nor a number"):
        run_config_of("sizes=[1]")


def test_a_hospitals_site_file_serves_for_an_app_too(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_text(
        'name = "north"\n[coordinator]\naddress = "127.0.0.1:9092"\n[data]\n'
        'path = "patients.csv"\n[limits]\nmin_patients = 20\n',
        encoding="utf-8",
    )
    assert load_app_site(path).records == tmp_path / "records" / "north"
    with path.open("a", encoding="utf-8") as file:
        file.write('[app]\npartition-id = 3\ntable = "/srv/patients.csv"\n')
    assert load_site(path).app == load_app_site(path).app
    path.write_text('name = "north"\n[coordinater]\n', encoding="utf-8")
    with pytest.raises(SiteError, match="coordinater"):
        load_app_site(path)
