"""Why a site gives no answer: what travels in place of a message's content.

Flower's `Error` has a number and a text; ours put `{code, hospital, reason}` into the text.
"""

import json
from dataclasses import asdict, dataclass

from flwr.app import Error

from erosion.common.line.frames import LONGEST_REASON
from erosion.common.support.text import printable

CLIENT_APP_RAISED_EXCEPTION = 2  # the site's program says why
MESSAGE_UNAVAILABLE = 3  # what came cannot be used
NODE_UNAVAILABLE = 5  # the site left or lost its connection


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """A site's problem, or the link's own words, which name no hospital."""

    code: str  # the class of the site's error; "" where none says it
    hospital: str  # as the site calls itself: not to be trusted; ""
    reason: str

    def encode(self) -> Error:
        """For Flower, on one line of at most LONGEST_REASON characters."""
        most = LONGEST_REASON
        while True:
            said = {**asdict(self), "reason": printable(self.reason, at_most=most)}
            text = json.dumps(said, ensure_ascii=False)
            if len(text) <= LONGEST_REASON:
                return Error(CLIENT_APP_RAISED_EXCEPTION, text)
            most = most * 3 // 4  # quotes and backslashes are written with another one before them


def read_error(error: Error) -> NoAnswer:
    """What a message without content says; a text of any other form is the reason."""
    text = error.reason or "no reason given"
    try:
        match json.loads(text):
            case {"code": str(code), "hospital": str(hospital), "reason": str(reason)}:
                return NoAnswer(code, hospital, reason)
    except (ValueError, RecursionError):
        pass
    return NoAnswer("", "", text)
