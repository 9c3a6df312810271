"""What a hospital does: `erosion check`, `review`, `client` and `predict`."""

import argparse
import getpass
import pwd
import sys
from collections.abc import Iterable
from pathlib import Path

from erosion_common.errors import SiteError
from erosion_common.program.command import (
    CHECK_FAILED,
    Command,
    add_log_format,
    add_supervised,
    add_weights,
    seconds,
)
from erosion_common.support.exporter import add_metrics, exporting
from erosion_common.support.logs import configure_logging
from erosion_common.support.process import imports_for_good, keep_freed_memory
from erosion_common.support.text import answer_to, shown


def _check_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("site", type=Path, help="the site file")
    parser.add_argument("--study", type=Path, help="check the data against this study too")


def _run_check(options: argparse.Namespace) -> int:
    configure_logging(options.verbose)
    with imports_for_good():
        from rich.console import Console

        from erosion_client.preflight.check import check_site

    console = Console(highlight=False)
    return 0 if check_site(options.site, options.study, console) else CHECK_FAILED


CHECK = Command(
    name="check",
    summary="check everything that a site needs to take part",
    details="Files, data, limits, network, TLS, clock and enrolment, each failure with its remedy.",
    examples="""\
  erosion check SITE.toml --study STUDY.toml
""",
    add_arguments=_check_arguments,
    run=_run_check,
)


def _review_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("site", type=Path, help="the hospital's site file")
    parser.add_argument("digest", nargs="?", help="a study's digest, or the beginning of it")
    parser.add_argument(
        "--study", type=Path, help="a study file, to decide before any coordinator asks"
    )
    decision = parser.add_mutually_exclusive_group()
    decision.add_argument("--approve", action="store_true", help="take part in exactly this study")
    decision.add_argument("--decline", action="store_true", help="take no part, or no longer")
    parser.add_argument("--by", metavar="NAME", help="who decides (default: the login name)")


def _lines(lines: Iterable[str]) -> str:
    """Return the lines without characters that could hide or reorder a coordinator's text."""
    return "\n".join(shown(line).replace("\n", "\ufffd") for line in lines)


def _login_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # in a container the account is often a number only
        raise SiteError(
            "This account has no login name, and the decision is kept with who made it",
            remedy="Say so with --by NAME.",
        ) from None


LOGIN_UID = Path("/proc/self/loginuid")  # sudo and su leave it, and only root changes it
_NO_LOGIN = 2**32 - 1


def _login_account(by: str | None) -> str:
    if by is not None:
        raise SiteError("approval.people = 2: the login says who decides", remedy="Leave --by out.")
    try:
        number = int(LOGIN_UID.read_text())
        if number != _NO_LOGIN:
            return pwd.getpwuid(number).pw_name
    except (OSError, ValueError, KeyError):
        pass
    raise SiteError(
        f"approval.people = 2: this process belongs to no login ({LOGIN_UID}), as in a container",
        remedy="Log in to the machine by your own account, and use sudo from there.",
    )


def _run_review(options: argparse.Namespace) -> int:
    with imports_for_good():
        from erosion_client.consent.approvals import (
            decide,
            entry_of,
            listing,
            named,
            too_many_approved,
        )
        from erosion_client.consent.review import review
        from erosion_client.records.records import Records
        from erosion_client.site_file import load_with_account
        from erosion_client.training.limits import allow_only_these
        from erosion_common.errors import StudyError
        from erosion_common.study.study import load_study, study_from_json

    if options.study is None and options.digest is None:
        said = [name for name in ("approve", "decline", "by") if getattr(options, name)]
        if said:
            raise StudyError(f"--{said[0]} of which study? Give its digest, or --study FILE.")
    site = load_with_account(options.site)
    allow_only_these(site.limits)
    records = Records.of(site)
    try:
        if options.study is None and options.digest is None:
            print(_lines(listing(site, records)))
            return 0
        if options.study is not None:
            entry = entry_of(load_study(options.study), records)
            if options.digest and not entry.digest.startswith(options.digest.lower()):
                raise StudyError(
                    f"The study in {options.study} has the digest {entry.digest[:12]}..., which"
                    f" does not begin with {options.digest!r}: it is another one. Nothing was"
                    " decided."
                )
        else:
            entry = named(options.digest, records)
        try:
            print(_lines(review(site, study_from_json(entry.content), records)))
        except StudyError:  # of another version of this program
            if not options.decline:
                raise
        is_asked = not (options.approve or options.decline)
        if is_asked and not sys.stdin.isatty():
            print("\nDecide with --approve or --decline.")
            return 0
        people, approve = site.approval.people, options.approve
        by = options.by or _login_name() if people == 1 else _login_account(options.by)
        if is_asked:
            answer = answer_to("\nTake part in exactly this study? [yes/no/later] ").lower()
            if answer not in ("yes", "y", "no", "n"):
                print("Nothing was decided.")
                return 0
            approve = answer.startswith("y")
        if approve and entry.state != "approved" and (full := too_many_approved(site, records)):
            raise SiteError(
                f"Nothing was decided: {full}",
                remedy=f"Raise that in {options.site}, or decline a study that is over; then"
                " approve this one.",
            )
        done = decide(records, entry, approve=approve, by=by, people=people)
    finally:
        records.close()
    state, more = done.state.capitalize(), ""
    if done.state == "pending":
        state, more = (
            "Approved",
            (
                " It holds once somebody who is logged in by another account approves it, too"
                " (approval.people = 2)."
            ),
        )
    print(f"\n{state} by {done.decided_by} at {done.decided}.{more}")
    return 0


REVIEW = Command(
    name="review",
    summary="look at a study and approve it for this hospital, or decline it",
    details="A site takes part in a study only after somebody there approved exactly this study,"
    " unless approval.automatic in the site file says otherwise.",
    add_arguments=_review_arguments,
    run=_run_review,
    examples="""\
  erosion review site.toml                          the studies that wait, and those decided
  erosion review site.toml 3f2a                     one of them, in plain words
  erosion review site.toml 3f2a --approve           take part in exactly this study
  erosion review site.toml --study STUDY.toml       a study file that was handed over
""",
)


def _client_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "site",
        type=Path,
        nargs="+",
        help="the site file, see `erosion schema site`; several, one for each coordinator, are"
        " answered in turn and have one account of budgets and privacy for the same data",
    )
    parser.add_argument(
        "--give-up-seconds",
        type=seconds,
        metavar="S",
        help="end when the coordinator has been out of reach for this long (default: keep trying)",
    )
    parser.add_argument(
        "--app",
        metavar="PACKAGE:APP",
        help="serve this Flower ClientApp, which is installed here, instead of studies; its"
        " coordinator runs `erosion server --app`",
    )
    add_metrics(parser)
    add_log_format(parser)
    parser.add_argument(
        "--until-study-ends",
        action="store_true",
        help="end when a study that this site took part in has ended (default: wait for the next"
        " one); with --give-up-seconds also where it may have missed the end",
    )
    add_supervised(parser)


def _run_client(options: argparse.Namespace) -> int:
    keep_freed_memory(large=True)
    configure_logging(
        max(options.verbose, 1), options.log_format, of_an_app=options.app is not None
    )
    with imports_for_good():
        from erosion_client.connection.agent import Until
        from erosion_client.connection.serve import serve_app, serve_together
        from erosion_client.site_file import load_app_site
        from erosion_common.errors import SiteError
        from erosion_common.support.process import end_with_stdin
        from erosion_common.support.software import check_distributions, load_app

    check_distributions()
    if options.until_stdin_closes:
        end_with_stdin()
    until = Until(options.give_up_seconds, options.until_study_ends)
    if options.app is not None:
        from flwr.clientapp import ClientApp

        if len(options.site) > 1:
            raise SiteError("--app goes with one site file; start a program for each.")
        app = load_app(options.app, ClientApp, SiteError)
        with exporting(options.metrics):
            serve_app(load_app_site(options.site[0]), app, until)
        return 0
    with exporting(options.metrics):
        serve_together(options.site, until)
    return 0


CLIENT = Command(
    name="client",
    summary="take part in studies, at a hospital",
    details="Stays connected and trains when it is asked. Only what `erosion client` itself does,"
    " or the app that --app names, is ever run here; code is never received.",
    examples="""\
  erosion check SITE.toml               first: could this site take part?
  erosion client SITE.toml              then stay connected
  erosion client A.toml B.toml          for two coordinators, with one account of budgets
  erosion client SITE.toml --metrics 9464   figures for Prometheus
  erosion status SITE.toml              meanwhile, in another terminal: what it is doing
  erosion client SITE.toml --app our_app.client_app:app
""",
    add_arguments=_client_arguments,
    run=_run_client,
)


def _predict_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, help="a run folder, e.g. runs/20260101T120000-mine")
    parser.add_argument(
        "data",
        type=Path,
        nargs="?",
        help="a table with the study's columns, in any format; of images a folder, an .npz, one"
        " image, or a table with a column `file` (default: where the site file says)",
    )
    parser.add_argument(
        "--site",
        type=Path,
        metavar="SITE.toml",
        help="a site file with names, maps and units for the table, or with how images are read;"
        " a table's patient key is written with each prediction and shows the patients that the"
        " model was trained on",
    )
    parser.add_argument("--arm", help="use this arm's model (default: the run's own)")
    add_weights(parser)
    parser.add_argument("-o", "--output", type=Path, help="a CSV file (default: standard output)")


def _run_predict(options: argparse.Namespace) -> int:
    with imports_for_good():
        from erosion_client.evaluation.predict import predict

    source = hospital = folder = None
    if options.site is not None:
        from erosion_client.site_file import load_site

        site = load_site(options.site)
        source, hospital = site.data, site.name
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


PREDICT = Command(
    name="predict",
    summary="apply a run's model to patients in a table, or to images",
    details="A table needs the study's feature columns, not the target. Images need no folders of"
    " classes; each has a line of its own, and the figures of a run are of a patient's mean.",
    examples="""\
  erosion predict runs/20260101T120000-mine new-patients.csv -o predictions.csv
  erosion predict runs/20260101T120000-mine new-patients.csv --site SITE.toml --arm local
  erosion predict runs/20260101T120000-mine new-scans/ --site SITE.toml
""",
    add_arguments=_predict_arguments,
    run=_run_predict,
)
