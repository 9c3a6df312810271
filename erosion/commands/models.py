"""`erosion models`."""

import argparse

from erosion.commands.command import Command


def _run(_options: argparse.Namespace) -> int:
    from erosion.common.errors import ModelError
    from erosion.common.learning.installed import GROUP, every_installed_model

    found = list(every_installed_model())
    for model in found:
        if isinstance(model, ModelError):
            print(f"(cannot be used) {model}\n")
            continue
        print(f"{model.name}: {model.target} of {model.distribution}")
        print("  in a study file:        in a site file:")
        print("    [model]                 [limits.installed_models]")
        print(f'    name = "installed"      "{model.name}" = "{model.sha256}"')
        print(f'    entry_point = "{model.name}"')
        print(f'    sha256 = "{model.sha256}"\n')
    if not found:
        print(f"No package that is installed here has an entry point in {GROUP}.")
    return 0


COMMAND = Command(
    name="models",
    summary="list the models of other packages that are installed here",
    details="None of their code is run. The SHA-256 is of all files of a model's package.",
    run=_run,
)
