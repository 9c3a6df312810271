"""A site's program, asked by hand: consent, training and wire, without a connection."""

from flwr.app import Context, Message, RecordDict

from erosion_client.connection.serve import make_app
from erosion_client.consent.consent import Consent
from erosion_client.records.records import Records
from erosion_client.site_file import Site
from erosion_client.training.hospital import Hospital
from erosion_common.protocol import wire
from erosion_common.protocol.flower import RequestMessage, read_error
from erosion_common.protocol.messages import TrainRequest
from erosion_common.study.study import Study
from tests.support.approval import approve


class Served:
    """The program of `site`, where somebody approved these studies."""

    def __init__(self, site: Site, *approved: Study, coordinator: str = "c") -> None:
        self.site, self.records = site, Records.of(site)
        for study in approved:
            approve(self.records, study)
        consent = Consent(site, self.records, coordinator)
        self._app = make_app(Hospital(site, secret=b"s" * 32), consent)

    def request(self, kind: str, content: RecordDict) -> Message:
        """A message of that kind, as it comes over the connection."""
        return RequestMessage(content, "1", 2, kind, group_id="", ttl=60.0)

    def ask(self, kind: str, content: RecordDict) -> Message:
        """The reply, or the error."""
        return self._app(self.request(kind, content), Context(1, 2, {}, RecordDict(), {}))

    def refusal(self, kind: str, content: RecordDict) -> str:
        """The words of its refusal, "" where it answers."""
        return refusal_in(self.ask(kind, content))

    def train(self, request: TrainRequest) -> Message:
        """The reply to a step of a round."""
        return self.ask(wire.train_type(request.step), wire.Encoder().encode(request))


def refusal_in(reply: Message) -> str:
    """The words of a refusal, "" for an answer."""
    return read_error(reply.error).reason if reply.has_error() else ""
