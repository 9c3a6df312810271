"""The README's picture: a run's weights per round, as an SVG file that needs no style sheet.

`python -m experiments.readme_picture runs/20260101T120000-breast-cancer docs/weights.svg`
"""

import argparse
from pathlib import Path

from erosion_common.support.files import write_atomically
from erosion_server.output.charts import standalone, weight_figure
from erosion_server.output.run_data import read_run
from erosion_server.run.run_folder import RunFolder
from experiments.program import output_file, run_program


def picture(run_folder: Path) -> str:
    """Return the weights figure of a finished run, in the report's light colours on white."""
    return standalone(weight_figure(read_run(RunFolder(run_folder))))


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("output", type=output_file)
    options = parser.parse_args()
    write_atomically(options.output, picture(options.run))


if __name__ == "__main__":
    run_program(main)
