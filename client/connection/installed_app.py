"""A Flower ClientApp that this site installed itself, served in place of the hospital's own.

The coordinator names a message's type and sends arrays and numbers; which program answers is named
on the site's own command line. Code is never received.
"""

import logging
from collections import OrderedDict

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from erosion.client.site_file import AppSite
from erosion.common.protocol.error_codes import CLIENT_APP_RAISED_EXCEPTION

logger = logging.getLogger("erosion.site")

RUNS_KEPT = 8  # whose state an app may find again


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
