"""What is done with a finished run: `erosion report`, `validate`, `export` and `audit`."""

import argparse
from pathlib import Path

from erosion_common.errors import ErosionError
from erosion_common.program.command import CHECK_FAILED, Command, add_weights, seconds
from erosion_common.support.files import write_atomically
from erosion_server.commands.options import add_link, federation_of


def _report_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, help="the folder of a run that finished")
    parser.add_argument(
        "--rounded",
        action="store_true",
        help="report-rounded.html, for publication: counts of the user's patients to tens, its"
        " other figures to two digits, with figures-rounded/",
    )


def _run_report(options: argparse.Namespace) -> int:
    from erosion_server.output.report import write_report
    from erosion_server.run.run_folder import existing_run_folder

    print(write_report(existing_run_folder(options.run).path, is_rounded=options.rounded))
    return 0


REPORT = Command(
    name="report",
    summary="write a finished run's report again, or rounded for publication",
    details="The page, and each of its figures as SVG and CSV under figures/, come from the run's"
    " own files: nobody is asked.",
    examples="""\
  erosion report runs/20260101T120000-mine
  erosion report runs/20260101T120000-mine --rounded
""",
    add_arguments=_report_arguments,
    run=_run_report,
)


def _validate_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, help="the folder of a run that finished")
    parser.add_argument(
        "--at",
        metavar="HOSPITAL",
        action="append",
        default=[],
        help="ask this enrolled hospital, which the study need not name; may be repeated (default:"
        " every hospital of the study that has not measured the model)",
    )
    parser.add_argument(
        "--wait",
        type=seconds,
        metavar="SECONDS",
        help="for hospitals that are not connected (default: the study's join deadline)",
    )
    add_link(parser)


def _run_validate(options: argparse.Namespace) -> int:
    from erosion_common.support.logs import configure_logging
    from erosion_server.coordination.later_validation import measure_later
    from erosion_server.link.link import make_link
    from erosion_server.run.run_folder import alone_in, existing_run_folder

    configure_logging(options.verbose)
    folder = existing_run_folder(options.run)
    federation = federation_of(options)
    with alone_in(options.run):
        report = measure_later(
            folder,
            options.at,
            lambda hospitals: make_link(hospitals, options.address, federation),
            options.wait,
            print,
        )
    print(report)
    return 0


VALIDATE = Command(
    name="validate",
    summary="have other hospitals measure a finished run's model on their patients",
    details="Sites connect as they do to `erosion server`. Each measures the model on its own"
    " patients and sends rounded figures of discrimination and calibration, if its people approved"
    " that and its limits allow it. The report is written again, with how far the model travels. A"
    " study with [validation] has this done when its run ends; this command asks those who were"
    " away, or further hospitals.",
    examples="""\
  erosion validate runs/20260101T120000-mine
  erosion validate runs/20260101T120000-mine --at north --at west --wait 600
""",
    add_arguments=_validate_arguments,
    run=_run_validate,
)


def _export_arguments(parser: argparse.ArgumentParser) -> None:
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


def _run_export(options: argparse.Namespace) -> int:
    if not (options.onnx or options.calculator):
        raise ErosionError("Nothing to export is named", remedy="Give --onnx or --calculator.")
    from erosion_server.export.calculator import calculator_page
    from erosion_server.export.onnx_file import as_onnx
    from erosion_server.export.saved_run import load_saved_run, model_card_page
    from erosion_server.run.run_folder import existing_run_folder

    saved = load_saved_run(existing_run_folder(options.run).path, options.arm, options.weights)
    files: dict[str, str | bytes] = {}
    if options.onnx:
        files["model.onnx"] = as_onnx(saved)
    if options.calculator:
        files["calculator.html"] = calculator_page(saved)
    files["model-card.html"] = model_card_page(saved)
    folder = options.output or options.run / "export"
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        write_atomically(folder / name, content)
        print(folder / name)
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
    add_arguments=_export_arguments,
    run=_run_export,
)


def _audit_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, help="the run's folder, at the coordinator")
    parser.add_argument(
        "openings",
        type=Path,
        nargs="*",
        metavar="OPENING",
        help="for a sealed run: the opening.safetensors of each hospital that handed it over",
    )
    parser.add_argument(
        "--logs",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME=FILE",
        help="hospitals' logs of what they sent, to compare with the hashes that the coordinator"
        " was sent with every reply: FILE is sent.jsonl in a copy of the hospital's whole folder"
        " records/, with the log's full files (sent-*.jsonl)",
    )


def _run_audit(options: argparse.Namespace) -> int:
    from erosion_common.errors import RunError
    from erosion_server.run.audit_run import audit_log, audit_run
    from erosion_server.run.run_folder import check_has_one_user, existing_run_folder

    if options.logs and options.openings:
        raise RunError(
            "An OPENING goes without --logs, which opens no sum; give the one or the other."
        )
    check_has_one_user(existing_run_folder(options.run))
    if not options.logs:
        return 0 if audit_run(options.run, options.openings) else CHECK_FAILED
    sound = True
    for log in options.logs:
        name, _, file = log.partition("=")
        if not (name and file):
            raise RunError(f"--logs {log}; write NAME=FILE, with the hospital's name in the study.")
        sound &= audit_log(options.run, name, Path(file))
    return 0 if sound else CHECK_FAILED


AUDIT = Command(
    name="audit",
    summary="compare hospitals' logs with the coordinator's record; find who spoiled a sealed sum",
    details="With --logs, it says whether each hospital's log still has every line that the"
    " coordinator has a hash of, and names a line that was changed, removed or rewritten."
    " Without, it names the update that made a sealed sum not fit its distances. A sealed arm stops"
    " if a sum cannot be one of updates at the claimed distances. To find the fault, a person at"
    " each hospital hands over opening.safetensors from the site's folder of sealed rounds"
    " (compute.state in the site file): its update of that round, and what takes off its masks."
    " A hospital can open only the update that was summed. Once all but one have opened,"
    " the rest of the sum is the last one's update.",
    examples="""\
  erosion audit RUN --logs bob=bob/records/bob/sent.jsonl carol=carol/records/carol/sent.jsonl
  erosion audit RUN
  erosion audit RUN bob/opening.safetensors carol/opening.safetensors
""",
    add_arguments=_audit_arguments,
    run=_run_audit,
)
