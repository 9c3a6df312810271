"""A Flower ClientApp that this site installed itself, served in place of the hospital's own.

The coordinator names a message's type and sends arrays and numbers; which program answers is named
on the site's own command line. Code is never received.
"""

import logging
from collections import OrderedDict
from pathlib import Path

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from pydantic import Field

from erosion.client.site_file import CoordinatorAddress, Site
from erosion.common.errors import SiteError
from erosion.common.protocol.error_codes import CLIENT_APP_RAISED_EXCEPTION
from erosion.common.settings.base import Settings, read_toml, validate
from erosion.common.settings.names import Name

logger = logging.getLogger("erosion.site")

RUNS_KEPT = 8  # whose state an app may find again


class AppSite(Settings):
    """What serving an app needs of a site file; the rest of it is left alone."""

    name: Name
    coordinator: CoordinatorAddress
    records: Path = Path("records")
    app: dict[str, str | int | float | bool] = Field(default_factory=dict)
    # the app's `context.node_config`, beside "name"


def load_app_site(path: Path) -> AppSite:
    """Raises SiteError with every problem."""
    raw = read_toml(path, "site file", SiteError)
    for_hospitals = Site.model_fields.keys() - AppSite.model_fields.keys()
    used = {key: value for key, value in raw.items() if key not in for_hospitals}
    site = validate(AppSite, used, f"Site file {path}", SiteError)
    folder = path.resolve().parent
    return site.model_copy(
        update={
            "records": folder / site.records.expanduser(),
            "coordinator": site.coordinator.beside(folder),
        }
    )


class InstalledApp:
    """Answers with the app, whose state lasts for as long as a run of the coordinator."""

    def __init__(self, app: ClientApp, site: AppSite) -> None:
        self._app, self._name = app, site.name
        self._node_config = {"name": site.name, **site.app}
        self._states: OrderedDict[int, RecordDict] = OrderedDict()  # by run, used last at the end

    def __call__(self, message: Message, context: Context) -> Message:
        """The app's answer; an exception of the app's is an error without its words."""
        run = context.run_id
        state = self._states.pop(run, RecordDict())
        own = Context(run, context.node_id, dict(self._node_config), state, context.run_config)
        self._states[run] = state
        while len(self._states) > RUNS_KEPT:
            self._states.popitem(last=False)
        try:
            reply = self._app(message, own)
        except Exception as problem:
            # It must neither end the site nor carry a patient's value out in its words.
            logger.exception("%s failed", message.metadata.message_type)
            reason = f"an unexpected {type(problem).__name__} at the site; its own log says more"
            error = Error(CLIENT_APP_RAISED_EXCEPTION, f"{self._name}: {reason}")
            return Message(error, reply_to=message)
        self._states[run] = own.state
        return reply
