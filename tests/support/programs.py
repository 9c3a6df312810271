"""The processes of the end-to-end tests: the command line, honest sites and misbehaving ones."""

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from erosion_client.connection import site_link
from erosion_client.connection.agent import Agent
from erosion_client.connection.credentials import credentials_for
from erosion_client.connection.serve import make_app
from erosion_client.connection.site_link import SendQueue
from erosion_client.consent.consent import Consent
from erosion_client.records.records import Records
from erosion_client.site_file import load_site
from erosion_client.training.hospital import Hospital
from erosion_common.errors import ErosionError
from erosion_common.program.command_line import main
from erosion_common.protocol import messages, wire
from erosion_common.protocol.frames import WIRE, Kind, Versions
from erosion_common.support.logs import configure_logging
from erosion_server.link import link
from tests.support.patience import wait_until


def erosion(output: str, *arguments: str) -> None:
    """The command `erosion` with these arguments; what it prints is added to the file `output`."""
    print_into(output)
    sys.exit(main(arguments))


def print_into(output: str | Path) -> None:
    """From now on all that this process prints is added to the file `output`."""
    with Path(output).open("ab", buffering=0) as file:
        for printed in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), printed.fileno())


def erosion_in_network(network: str, output: str, *arguments: str) -> None:
    """The same on a machine that is a network namespace."""
    with Path("/run/netns", network).open() as file:
        assert ctypes.CDLL(None).setns(file.fileno(), 0) == 0
    erosion(output, *arguments)


def erosion_on_machine(network: str, folder: str, output: str, *arguments: str) -> None:
    """The same in a folder, and with the hosts that `ip netns exec` would show it."""
    new_mounts, slave_all, bind = 0x20000, 1 << 19 | 1 << 14, 1 << 12
    system, hosts = ctypes.CDLL(None), os.fsencode(f"/etc/netns/{network}/hosts")
    assert system.unshare(new_mounts) == 0
    assert system.mount(None, b"/", None, slave_all, None) == 0
    assert system.mount(hosts, b"/etc/hosts", None, bind, None) == 0
    os.chdir(folder)
    Path(output).write_text("")
    erosion_in_network(network, output, *arguments)


def erosion_of_version(output: str, software: str, protocol: int, *arguments: str) -> None:
    """The same as if it were another version, which speaks `protocol` and the one before."""
    ours = Versions(WIRE, protocol, software, max(1, protocol - 1))
    for module in (messages, wire, link):
        vars(module).update(PROTOCOL=protocol, OLDEST_PROTOCOL=ours.oldest)
    vars(link)["software_version"], site_link.OURS = lambda: software, ours
    erosion(output, *arguments)


def honest(site_file: str) -> None:
    """What `erosion client` does."""
    run(site_file, lambda message, answer: answer(message))


def run(
    site_file: str, answer_train: Callable[[Message, Callable[[Message], Message]], Message]
) -> None:
    """A site whose answers to train requests go through `answer_train`."""
    configure_logging(0)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    site = load_site(Path(site_file))
    consent = Consent(site, Records.of(site), "test")
    app = make_app(Hospital(site), consent)

    class Spoiled(ClientApp):
        def __call__(self, message: Message, context: Context) -> Message:
            if message.metadata.message_type != wire.TRAIN:
                return app(message, context)
            return answer_train(message, lambda m: app(m, context))

    line = credentials_for(site.coordinator)
    agent = Agent(line.connect, Spoiled(), address=line.address, has_changed=consent.has_news)
    try:
        agent.run()
    except ErosionError as problem:
        print(problem, flush=True)
        os._exit(problem.exit_code)


def takes_its_time(site_file: str) -> None:
    def answer_train(message: Message, answer: Callable[[Message], Message]) -> Message:
        time.sleep(0.1)
        return answer(message)

    run(site_file, answer_train)


def is_slow_once(site_file: str) -> None:
    """At work on round 2 until there is a file `wake` beside the site file, then quick again.

    It notes what it worked on in `worked_on`.
    """
    worked_on, wake = (Path(site_file).with_name(name) for name in ("worked_on", "wake"))

    def answer_train(message: Message, answer: Callable[[Message], Message]) -> Message:
        with worked_on.open("a") as file:
            file.write(f"{message.metadata.group_id}\n")
        if (message.metadata.group_id or "").endswith("/2"):
            wait_until(wake.exists)
        return answer(message)

    run(site_file, answer_train)


def dies_in_round_2(site_file: str) -> None:
    def answer_train(message: Message, answer: Callable[[Message], Message]) -> Message:
        if (message.metadata.group_id or "").endswith("/2"):
            os.kill(os.getpid(), signal.SIGKILL)
        return answer(message)

    run(site_file, answer_train)


def dies_while_uploading(site_file: str) -> None:
    """Announces its reply, sends part of it, and is gone."""
    put = SendQueue.put

    def half(self: SendQueue, frame: bytes) -> None:
        if frame[0] == Kind.DATA:
            time.sleep(0.2)  # for the announcement to leave
            os._exit(9)
        put(self, frame)

    SendQueue.put = half  # type: ignore[method-assign]
    honest(site_file)


def forgets_its_studies(site_file: str) -> None:
    """Like a program that was started anew between any two requests, over a line that held."""
    configure_logging(0)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    site = load_site(Path(site_file))
    hospital, consent = Hospital(site), Consent(site, Records.of(site), "test")

    class Forgetful(ClientApp):
        def __call__(self, message: Message, context: Context) -> Message:
            return make_app(hospital, consent)(message, context)

    line = credentials_for(site.coordinator)
    Agent(line.connect, Forgetful(), address=line.address, has_changed=consent.has_news).run()
