"""`erosion server --app`: a Flower ServerApp of somebody's own, over our line."""

import logging
import secrets
import tomllib

from flwr.app import Context, RecordDict
from flwr.serverapp import ServerApp

from erosion.common.errors import ErosionError, RunError, StudyError
from erosion.common.line.run_news import Plain, RunNews
from erosion.common.protocol.flower_identity import COORDINATOR_NODE_ID, identify
from erosion.server.coordination.app_grid import AppGrid
from erosion.server.coordination.end_notices import FAILED, EndNotices
from erosion.server.enrolment.federation_folder import FederationFolder
from erosion.server.link.open_link import make_link

logger = logging.getLogger("erosion.app")


def run_app(
    app: ServerApp,
    run_config: dict[str, Plain],
    address: str | None,
    federation: FederationFolder | None,
) -> None:
    """Listen, let the app run to its end, and say goodbye. Raises LinkError, RunError."""
    identify()
    run = RunNews(secrets.randbits(62) + 1, run_config)
    link = make_link((), address, federation)
    link.grid.run_news = run
    link.start()
    logger.info("listening at %s", link.address)
    try:
        context = Context(run.number, COORDINATOR_NODE_ID, {}, RecordDict(), dict(run_config))
        try:
            _call(app, AppGrid(link.grid, run.number), context)
        except ErosionError:  # an app's run is never resumed
            EndNotices(link).say("", FAILED)
            raise
        EndNotices(link).say("")
    finally:
        link.stop()


def run_config_of(text: str) -> dict[str, Plain]:
    """`rounds=20 lr=0.1 name="x"`: values as in TOML. Raises StudyError."""
    values: dict[str, Plain] = {}
    # A value may be a text with spaces, so that every word could end one.
    waiting = ""
    for word in text.split(" "):
        waiting = f"{waiting} {word}" if waiting else word
        try:
            parsed = tomllib.loads(waiting)
        except (ValueError, RecursionError):
            continue
        for key, value in parsed.items():
            if not isinstance(value, Plain):
                raise StudyError(f"--run-config: {key} is neither a text nor a number.")
            values[key] = value
        waiting = ""
    if waiting:
        raise StudyError(
            f"--run-config: {waiting!r} cannot be read; write KEY=VALUE with values as in TOML, for"
            " example 'rounds=20 lr=0.1 name=\"north\"'."
        )
    return values


def _call(app: ServerApp, grid: AppGrid, context: Context) -> None:
    try:
        app(grid, context)
    except ErosionError:
        raise
    except Exception as problem:
        logger.debug("the app failed", exc_info=True)
        raise RunError(
            f"The app failed ({type(problem).__name__}: {problem}). -v shows where."
        ) from problem
