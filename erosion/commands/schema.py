"""`erosion schema`."""

import argparse
import json

from erosion.commands.command import Command


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", choices=["study", "site"])


def _run(options: argparse.Namespace) -> int:
    from erosion.client.site_file import Site
    from erosion.common.study.study import Study

    model = Study if options.file == "study" else Site
    print(json.dumps(model.model_json_schema(), indent=2))
    return 0


COMMAND = Command(
    name="schema",
    summary="print the JSON schema of the study or the site file",
    add_arguments=_add_arguments,
    run=_run,
)
