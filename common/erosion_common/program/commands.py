"""The sub-commands of `erosion`: a fixed list, so that no other package can add to it."""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from erosion_common.errors import ErosionError
from erosion_common.program.command import Command

COMMANDS = {  # in the order of `erosion --help`: name -> module; its constant has the same name
    "testbed": "erosion.commands.testbed",
    "data": "erosion.commands.testbed",
    "experiment": "experiments.command",
    "study": "erosion_client.commands.drafts",
    "site": "erosion_client.commands.drafts",
    "enroll": "erosion_common.commands.enroll",
    "server": "erosion_server.commands.coordinator",
    "check": "erosion_client.commands.hospital",
    "review": "erosion_client.commands.hospital",
    "describe": "erosion_server.commands.describe",
    "client": "erosion_client.commands.hospital",
    "status": "erosion_common.commands.records",
    "watch": "erosion_common.commands.records",
    "log": "erosion_common.commands.records",
    "audit": "erosion_server.commands.finished_run",
    "report": "erosion_server.commands.finished_run",
    "validate": "erosion_server.commands.finished_run",
    "predict": "erosion_client.commands.hospital",
    "export": "erosion_server.commands.finished_run",
    "algorithms": "erosion_common.commands.lists",
    "models": "erosion_common.commands.lists",
    "schema": "erosion_common.commands.lists",
}
DISTRIBUTIONS = {"erosion": "erosion-fl", "experiments": "a checkout of the project"}


def installed_commands() -> list[Command]:
    """Return those that are installed here."""
    return [
        getattr(import_module(module), name.upper())
        for name, module in COMMANDS.items()
        if is_installed(module)
    ]


def missing_commands() -> dict[str, str]:
    """Return the others by name, with the package that brings each."""
    return {name: brings(module) for name, module in COMMANDS.items() if not is_installed(module)}


def is_installed(module: str) -> bool:
    """Whether the package of a module is installed here; imports nothing."""
    package = module.partition(".")[0]
    found = find_spec(package)
    if package != "experiments" or found is None or found.origin is None:
        return found is not None
    ours = find_spec("erosion")  # its name is common: the checkout's is next to `erosion`
    return ours is not None and Path(ours.origin or "").parents[1] == Path(found.origin).parents[1]


def brings(module: str) -> str:
    """Return the distribution that a module of ours is in."""
    package = module.partition(".")[0]
    return DISTRIBUTIONS.get(package, package.replace("_", "-"))


def optional(module: str, wanted_by: str) -> ModuleType:
    """Import a module of another package of ours. Raises ErosionError where it is not installed."""
    if not is_installed(module):
        raise ErosionError(
            f"{wanted_by} comes with {brings(module)}, which is not installed here",
            remedy="Install it, in this program's version.",
        )
    return import_module(module)
