"""`erosion export`."""

import argparse
from pathlib import Path

from erosion_common.errors import ErosionError
from erosion_common.program.command import Command, add_weights
from erosion_common.support.files import write_atomically


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, help="the folder of a run that finished")
    parser.add_argument(
        "--onnx",
        action="store_true",
        help="model.onnx: a patient's columns go in, what `erosion predict` writes comes out",
    )
    parser.add_argument(
        "--calculator",
        action="store_true",
        help="calculator.html: a page to fill in for one patient, which needs no network; for"
        " linear models of up to 30 columns",
    )
    parser.add_argument("--arm", help="export this arm's model (default: the run's own)")
    add_weights(parser)
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FOLDER", help="where to (default: RUN/export)"
    )


def _run(options: argparse.Namespace) -> int:
    if not (options.onnx or options.calculator):
        raise ErosionError("Nothing to export is named", remedy="Give --onnx or --calculator.")
    from erosion_server.export.calculator import calculator_page
    from erosion_server.export.onnx_file import as_onnx
    from erosion_server.export.saved_run import load_saved_run, model_card_page

    saved = load_saved_run(options.run, options.arm, options.weights)
    files: dict[str, str | bytes] = {}
    if options.onnx:
        files["model.onnx"] = as_onnx(saved)
    if options.calculator:
        files["calculator.html"] = calculator_page(saved)
    files["model-card.html"] = model_card_page(saved)
    folder = options.output or options.run / "export"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            write_atomically(folder / name, content)
            print(folder / name)
    except OSError as problem:
        raise ErosionError(
            f"{folder} cannot be written: {problem}", remedy="Give another --output."
        ) from None
    return 0


EXPORT = Command(
    name="export",
    summary="take a run's model along, for programs that know nothing of Erosion",
    details="Preparing a patient's values is part of what is written: missing values, categories,"
    " ranges and scaling are as in `erosion predict`. A model card is written with it.",
    examples="""\
  erosion export runs/20260101T120000-mine --onnx
  erosion export runs/20260101T120000-mine --calculator -o for-the-ward
""",
    add_arguments=_add_arguments,
    run=_run,
)
