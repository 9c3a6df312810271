"""What there is to name: `erosion algorithms`, `models` and `schema`."""

import argparse
import json

from erosion.commands.command import Command


def _run_algorithms(_options: argparse.Namespace) -> int:
    from erosion.common.algorithms import catalogue

    print(catalogue())
    return 0


ALGORITHMS = Command(
    name="algorithms",
    summary="explain the algorithms that a study can name",
    run=_run_algorithms,
)


def _run_models(_options: argparse.Namespace) -> int:
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


MODELS = Command(
    name="models",
    summary="list the models of other packages that are installed here",
    details="None of their code is run. The SHA-256 is of all files of a model's package.",
    run=_run_models,
)


def _schema_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", choices=["study", "site"])
    parser.add_argument(
        "--format",
        choices=["json", "markdown"],
        default="json",
        help="a JSON schema, for editors and programs, or a page (default: %(default)s)",
    )


def _run_schema(options: argparse.Namespace) -> int:
    from erosion.reference import PAGES

    page = PAGES[options.file]
    if options.format == "markdown":
        print(page.markdown(), end="")
    else:
        print(json.dumps(page.schema(), indent=2))
    return 0


SCHEMA = Command(
    name="schema",
    summary="print every key of the study or the site file",
    examples="""\
  erosion schema study
  erosion schema site --format markdown
""",
    add_arguments=_schema_arguments,
    run=_run_schema,
)
