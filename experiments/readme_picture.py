"""The README's picture: a run's weights per round, as an SVG file that needs no style sheet.

`python -m experiments.readme_picture runs/20260101T120000-breast-cancer docs/weights.svg`
"""

import argparse
import re
from pathlib import Path

from erosion.simulation.program import output_file, run_program
from erosion_common.support.files import write_atomically
from erosion_server.output.charts import weight_figure
from erosion_server.output.pages import TEMPLATES
from erosion_server.output.run_data import read_run
from erosion_server.run.run_folder import RunFolder


def picture(run_folder: Path) -> str:
    """Return the weights figure of a finished run, in the report's light colours on white."""
    light, _, _ = (TEMPLATES / "style.css").read_text(encoding="utf-8").partition("@media")
    colours = dict(re.findall(r"--([\w-]+): (#\w+);", light))
    svg = str(weight_figure(read_run(RunFolder(run_folder))))
    svg = re.sub(r"var\(--([\w-]+)\)", lambda match: colours[match[1]], svg)
    return svg.replace("<svg ", '<svg style="background: #ffffff; font-family: sans-serif" ', 1)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("output", type=output_file)
    options = parser.parse_args()
    write_atomically(options.output, picture(options.run))


if __name__ == "__main__":
    run_program(main)
