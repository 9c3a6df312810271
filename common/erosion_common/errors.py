"""Every error that this program raises on purpose.

ErosionError            shown to people as one message, never as a traceback
├── StudyError          the study file is missing, malformed, or asks the impossible
│   └── ModelError      ... a model or its weights that are not here, or that cannot be used
├── SiteError           the site file or the hospital's environment is wrong
│   └── NotReady        ... its disk or its data fail for now, and it sends nothing
├── DataError           a hospital's data do not meet the study's contract
├── Refusal             a hospital declines a request (its own limits)
│   ├── Undecided       ... until a person there has decided about the study
│   └── RunOver         ... in this run, now and later: only a new run can be answered
├── LinkError           the network, a port, or the other side
├── RunError            a study could not be carried on
│   ├── HopelessError   ... nor can it be resumed: a new run is needed
│   │   └── DivergedError   ... because the user's own training is not finite
│   └── DiskError       ... because the run's files cannot be written
├── CheckpointError     a file of an earlier run cannot be used
└── EnrolmentError      the federation's folder, keys or certificates
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """What went wrong, as data: programs read the fields, people the text."""

    code: str  # the error's class
    what: str
    where: str = ""  # the file, key or place that it is about
    remedy: str = ""  # a sentence

    @property
    def text(self) -> str:
        """For people: "where: what. remedy"."""
        said = f"{self.where}: {self.what}" if self.where else self.what
        return f"{said.removesuffix('.')}. {self.remedy}" if self.remedy else said

    @property
    def reason(self) -> str:
        """The text as a part of another sentence: without a full stop."""
        return self.text.removesuffix(".")


class ErosionError(Exception):
    """A problem that a person can fix; it carries a `Problem` and reads as its text."""

    exit_code = 1

    def __init__(self, what: str = "", *, where: object = "", remedy: str = "") -> None:
        self.problem = Problem(type(self).__name__, what, str(where), remedy)
        super().__init__(self.problem.text)

    @property
    def public(self) -> str:
        """The reason that may leave the site: an error about data can quote a patient's value."""
        return f"{type(self).__name__} at the site; its own log says more"


class StudyError(ErosionError):
    """The study file is missing, malformed, or asks the impossible."""

    exit_code = 2


class ModelError(StudyError):
    """An installed model or a file of weights is not as the study says."""

    @property
    def public(self) -> str:
        """Without the message: it has paths, hashes, and what somebody else's code raised.

        That code may have raised it about patients.
        """
        return "the study's model cannot be used at the site; its own log says why"


class SiteError(ErosionError):
    """The site file or the hospital's environment is wrong."""

    exit_code = 3


class NotReady(SiteError):  # noqa: N818 - a state, not a mistake
    """The disk or the data fail for now: the site signs out until they are back."""


class DataError(ErosionError):
    """A hospital's data do not meet the study's contract."""

    exit_code = 4


class Refusal(ErosionError):  # noqa: N818 - a decision, not an error
    """A hospital declines a request because of its limits."""

    exit_code = 5

    @property
    def public(self) -> str:
        """The whole message: what is quoted in every Refusal, a test holds against a list."""
        return str(self)


class Undecided(Refusal):
    """A person at the hospital has yet to decide about a study."""


class RunOver(Refusal):
    """A hospital cannot answer this run any more: only a new one."""


class LinkError(ErosionError):
    """The network, a port, or the other side."""

    exit_code = 6


class RunError(ErosionError):
    """A study could not be carried on."""

    exit_code = 7


class HopelessError(RunError):
    """A run that cannot be resumed either: a new one is needed."""


class DivergedError(HopelessError):
    """The user's own training is not finite round after round."""


class DiskError(RunError):
    """A run's files cannot be written, which is no fault of its study."""


class CheckpointError(ErosionError):
    """A file of an earlier run cannot be used."""

    exit_code = 8


class EnrolmentError(ErosionError):
    """The federation's folder, keys or certificates."""

    exit_code = 9
