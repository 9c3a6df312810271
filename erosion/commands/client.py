"""`erosion client`."""

import argparse
from pathlib import Path

from erosion.commands.command import Command
from erosion.commands.options import add_log_format, add_supervised, seconds
from erosion.common.support.logs import configure_logging
from erosion.common.support.process import imports_for_good, keep_freed_memory


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("site", type=Path, help="the site file; see `erosion schema site`")
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
    add_log_format(parser)
    parser.add_argument(
        "--until-study-ends",
        action="store_true",
        help="end when a study that this site took part in has ended (default: wait for the next"
        " one). After a study that it declined, or came too late for, it ends once the coordinator"
        " has gone. If the coordinator is out of reach for 10 minutes, so that the site may have"
        " missed the end, it ends with an error (--give-up-seconds sets that time, and then holds"
        " before a study, too)",
    )
    add_supervised(parser)


def _run(options: argparse.Namespace) -> int:
    keep_freed_memory()
    configure_logging(
        max(options.verbose, 1), options.log_format, of_an_app=options.app is not None
    )
    with imports_for_good():
        from erosion.client.connection.agent import Until
        from erosion.client.connection.serve import serve, serve_app
        from erosion.client.site_file import load_app_site
        from erosion.common.errors import SiteError
        from erosion.common.support.process import end_with_stdin
        from erosion.common.support.software import load_app

    if options.until_stdin_closes:
        end_with_stdin()
    until = Until(options.give_up_seconds, options.until_study_ends)
    if options.app is not None:
        from flwr.clientapp import ClientApp

        app = load_app(options.app, ClientApp, SiteError)
        serve_app(load_app_site(options.site), app, until)
        return 0
    serve(options.site, until)
    return 0


COMMAND = Command(
    name="client",
    summary="take part in studies, at a hospital",
    details="Stays connected and trains when it is asked. Only what `erosion client` itself does,"
    " or the app that --app names, is ever run here; code is never received.",
    examples="""\
  erosion check SITE.toml               first: could this site take part?
  erosion client SITE.toml              then stay connected
  erosion status SITE.toml              meanwhile, in another terminal: what it is doing
  erosion client SITE.toml --app our_app.client_app:app
""",
    add_arguments=_add_arguments,
    run=_run,
)
