"""`erosion predict`."""

import argparse
from pathlib import Path

from erosion.commands.command import Command
from erosion.commands.options import add_weights
from erosion.common.support.process import imports_for_good


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, help="a run folder, e.g. runs/20260101T120000-mine")
    parser.add_argument(
        "data",
        type=Path,
        nargs="?",
        help="a table with the study's columns, in any format (default: where the site file says)",
    )
    parser.add_argument(
        "--site",
        type=Path,
        metavar="SITE.toml",
        help="a site file, whose names, maps and units hold for the table; its patient key is"
        " written beside each prediction; patients whom the model was trained on are known by it",
    )
    parser.add_argument("--arm", help="use this arm's model (default: the run's own)")
    add_weights(parser)
    parser.add_argument("-o", "--output", type=Path, help="a CSV file (default: standard output)")


def _run(options: argparse.Namespace) -> int:
    with imports_for_good():
        from erosion.client.evaluation.predict import predict

    source = hospital = folder = None
    if options.site is not None:
        from erosion.client.dataset.load import table_source
        from erosion.client.site_file import load_site

        site = load_site(options.site)
        source, hospital = table_source(site.data), site.name
        folder = site.consent_folder
    predict(
        options.run,
        options.data,
        options.output,
        source=source,
        hospital=hospital,
        arm=options.arm,
        weights=options.weights,
        site_folder=folder,
    )
    return 0


COMMAND = Command(
    name="predict",
    summary="apply a run's model to patients in a table",
    details="The table needs the study's feature columns, not the target.",
    examples="""\
  erosion predict runs/20260101T120000-mine new-patients.csv -o predictions.csv
  erosion predict runs/20260101T120000-mine new-patients.csv --site SITE.toml --arm local
""",
    add_arguments=_add_arguments,
    run=_run,
)
