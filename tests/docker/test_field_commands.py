"""What the comments of the compose files say to run works, as far as it goes without an engine."""

import shlex
from pathlib import Path

import pytest

from erosion_client.site_file import load_site
from erosion_common.program.command_line import main, parser
from tests.docker.field_commands import commands_in, run_in_shell

FILES = ["docker/coordinator.yml", "docker/site.yml"]


def arguments(command: str, file: str) -> list[str]:
    """Those of `erosion` in a `docker compose run` beside `file`; none where it runs nothing."""
    docker, compose, f, named, verb, *words = shlex.split(command)
    assert [docker, compose, f, named] == ["docker", "compose", "-f", Path(file).name]
    if verb != "run":
        return []
    service, *rest = [word for word in words if word not in ("--rm", "--service-ports")]
    return ["enroll", *rest] if service == "enroll" else rest


def own(commands: list[str]) -> list[str]:
    """Those that any shell runs, without what only root may do."""
    return [
        " && ".join(part for part in command.split(" && ") if not part.startswith("chown"))
        for command in commands
        if not command.startswith(("docker", "chown"))
    ]


@pytest.mark.parametrize("file", FILES)
def test_every_command_is_understood(file: str) -> None:
    commands = [command for command in commands_in(file) if command.startswith("docker")]
    assert len(commands) > 3
    for command in commands:
        if words := arguments(command, file):
            assert callable(parser().parse_args(words).handler)


def test_a_run_is_resumed_with_the_port_that_sites_dial() -> None:
    (command,) = (command for command in commands_in(FILES[0]) if "--resume" in command)
    assert "--service-ports coordinator server study.toml --resume" in command


def test_a_site_is_enrolled_and_its_certificate_renewed_as_the_comments_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def enrol(file: str, folder: Path) -> None:
        monkeypatch.chdir(folder)
        for command in commands_in(file):
            words = arguments(command, file) if command.startswith("docker") else []
            if words[:1] == ["enroll"]:
                assert main([word.replace("/received", "../received") for word in words]) == 0

    here, there = tmp_path / "coordinator", tmp_path / "hospital"
    here.mkdir()
    there.mkdir()
    for command in own(commands_in(FILES[0])):
        run_in_shell(command, here)
    enrol(FILES[0], here)

    kit = here / "federation" / "kits" / "north.tar.gz"
    unpack, receive = own(commands_in(FILES[1]))
    (there / "KIT.tar.gz").write_bytes(kit.read_bytes())
    run_in_shell(unpack, there)
    before = (there / "site" / "node.crt").read_bytes()

    monkeypatch.chdir(here)
    assert main(["enroll", "site", "south"]) == 0
    assert main(["enroll", "renew", "north", "--out", str(there / "new.tar.gz")]) == 0
    assert main(["enroll", "peers", "--out", str(there / "peers.pem")]) == 0
    (there / "new.tar.gz").replace(there / "KIT.tar.gz")
    run_in_shell(receive, there)
    (there / "peers.pem").replace(there / "received" / "peers.pem")
    enrol(FILES[1], there / "site")
    assert (there / "site" / "node.crt").read_bytes() != before
    assert load_site(there / "site" / "site.toml").name == "north"
