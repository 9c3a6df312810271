"""`erosion predict`."""

import argparse
from pathlib import Path

from erosion.commands.command import Command


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, help="a run folder, e.g. runs/20260101T120000-mine")
    parser.add_argument("data", type=Path, help="CSV or Parquet with the study's columns")
    parser.add_argument("-o", "--output", type=Path, help="a CSV file (default: standard output)")


def _run(options: argparse.Namespace) -> int:
    from erosion.client.evaluation.predict import predict

    predict(options.run, options.data, options.output)
    return 0


COMMAND = Command(
    name="predict",
    summary="apply a run's model to patients in a table",
    details="The table needs the study's feature columns, not the target.",
    examples="""\
  erosion predict runs/20260101T120000-mine new-patients.csv -o predictions.csv
""",
    add_arguments=_add_arguments,
    run=_run,
)
