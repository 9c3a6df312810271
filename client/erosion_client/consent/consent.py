"""Authorises every request by what a person at this site approved, and by its budgets.

`authorise` notes the answer before it is computed: a question has one answer, also after a failure
of the machine. The cost of the answer is noted before it leaves (`PrivateRounds.pay`, `commit`).
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from torch import Tensor

from erosion_client.consent.approvals import (
    WITHIN_LIMITS,
    contracts_at,
    contracts_of,
    decision_about,
    declined_before,
    entry_of,
    first_entry_of,
    local_name,
    no_run_left,
    too_many_approved,
)
from erosion_client.records.account import dataset_of
from erosion_client.records.answers import (
    FINAL_FIGURES,
    MOST_PENDING,
    Answer,
    StudyEntry,
    now,
    place,
)
from erosion_client.records.records import Records
from erosion_client.site_file import Site
from erosion_client.training.kept_state import Moment
from erosion_client.training.limits import (
    Needs,
    check_study,
    lacking,
    needs_of,
    part_asked,
    rounds_asked,
)
from erosion_client.training.request import Request, hash_of, moments_of
from erosion_common.algorithms.base import MOST_EXCHANGES, TRAIN
from erosion_common.errors import Refusal, RunOver, Undecided
from erosion_common.protocol.messages import EvaluateRequest, TrainRequest
from erosion_common.sealed import phases
from erosion_common.study.study import Study
from erosion_common.support.text import printable

_LONGEST_NAME = 200  # characters
LONGEST_STUDY = 2**19  # characters of a study that waits for a person
_KNOWN = 64  # studies for which the approved one is cached


class Consent:
    """What one site takes part in for one coordinator; raises Refusal and SiteError."""

    def __init__(self, site: Site, records: Records, coordinator: str) -> None:
        """`coordinator`: its name in the records, for example its certificate's fingerprint."""
        self._site, self._records, self._coordinator = site, records, coordinator
        self._key = coordinator, dataset_of(site)  # answers and budgets are counted for both
        self._waiting: dict[str, Study] = {}  # by digest; asked about and waiting for a person
        self._seen = -1  # number of decisions when the waiting ones were last looked at
        self._decisions = -1  # number of decisions when the next was filled
        self._approved: dict[str, str] = {}  # study's digest -> approved digest
        self._names: dict[str, str] = {}  # by approved digest, for the log
        self._held: set[str] = set()  # digests of studies with columns' contracts that are noted
        self.is_repeated = False  # whether the last answer repeated an earlier one

    def check(self, study: Study) -> str:
        """Return the digest of the study in the records; Refusal where it is not approved.

        An undecided study is kept for `erosion review`. A study declined later is declined from
        then.
        """
        approved = self._approved_by(study)
        self._hold(study, approved)
        return approved

    def study_named(self, digest: str) -> str | None:
        """Return the name of the approved study with this digest; None: there is none."""
        digest = self._approved.get(digest, digest)
        if digest not in self._names:
            if (entry := self._records.studies.get(digest)) is None or entry.state != "approved":
                return None
            self._names[digest] = entry.name
        return self._names[digest]

    def check_run(self, study: Study, run: str | None) -> None:
        """Check the same before a run begins, and that the budgets cover all of it."""
        approved = self.check(study)
        if run is None or self._records.answers.has_run(self._key, approved, run):
            return
        self._refuse(no_run_left(self._site, self._records, self._key, approved, run, study.user))
        used = self._records.answers.used(self._key)
        self._refuse(*lacking(self._site.budget, used, needs_of(self._site, study)))

    def has_news(self) -> bool:
        """Return whether an undecided study was approved since; once for each."""
        if not self._waiting or (decided := self._records.studies.num_decisions()) == self._seen:
            return False
        self._seen = decided
        before = len(self._waiting)
        self._waiting = {
            digest: study
            for digest, study in self._waiting.items()
            if (entry := decision_about(self._site, study, self._records)) is None
            or entry.state != "approved"
        }
        return len(self._waiting) < before

    def authorise(
        self,
        request: Request,
        kept: Mapping[str, Tensor] | None = None,
        kept_to: Mapping[str, Moment | None] | None = None,
    ) -> None:
        """Note that the request is about to be answered; Refusal where it must not be.

        `kept`: the state of earlier rounds that the answer is also computed from.
        `kept_to`: the last exchange that this state is of, by arm; None: there is none.
        """
        study, approved = request.study, self.check(request.study)
        what = approved, request.run, study.digest
        if isinstance(request, TrainRequest):
            self._check_fields(request)
            step = TRAIN if request.step == TRAIN else place(request.step, request.exchange)
            answer = Answer(*what, request.arm, request.round, step)
        else:
            _check_names(run=request.run)
            answer = Answer(*what, "", 0, FINAL_FIGURES, study.fold is not None)
        # A sealed phase flushes this with its own note, or is of keys that are in memory alone.
        is_sealed = study.federation.sealed and self._site.name != study.user
        is_phase = is_sealed and isinstance(request, TrainRequest)
        with self._records.transaction(flushed=not is_phase):
            if isinstance(request, TrainRequest):
                self._check_times(request, answer)
            self._note(request, answer, question_hash(request, kept or {}), kept_to or {})

    def commit(self, request: Request, kept_to: Mapping[str, Moment | None]) -> None:
        """Note, before the answer leaves, to which exchange state is kept by arm."""
        for arm, last in kept_to.items():
            if last is not None:
                which = request.study.digest, request.run, arm
                self._records.answers.note_kept(self._key, *which, (last.round, last.exchange))

    def _approved_by(self, study: Study) -> str:
        if (decisions := self._records.studies.num_decisions()) != self._decisions:
            self._decisions = decisions
            self._approved.clear()
            self._names.clear()
        if (known := self._approved.get(study.digest)) is not None:
            return known
        entry = decision_about(self._site, study, self._records)
        if entry is None:
            return self._ask(study)
        if entry.state == "declined":
            raise Refusal(f"{self._site.name} declined study {study.name!r} ({entry.digest[:12]}).")
        if entry.decided_by == WITHIN_LIMITS:
            self._check_declined(study)
        if len(self._approved) == _KNOWN:
            self._approved.clear()
        known_as = (first_entry_of(study, self._records) or entry).digest
        self._records.answers.note_origin(study.digest, known_as)
        self._approved[study.digest] = known_as
        return known_as

    def _hold(self, study: Study, approved: str) -> None:
        """Note the columns' contracts before data are read: they disclose whether values fit."""
        if study.digest in self._held:
            return
        contracts = contracts_at(self._site, study)
        most = self._site.budget.variants
        known_as = self._records.answers.hold(self._key, contracts, most)
        if known_as is not None and not self._records.answers.runs(self._key, approved):
            names = contracts_of(study)  # a column's local name stays here
            column = next(n for n in names if known_as in (n, local_name(self._site, n)))
            raise Refusal(
                f"{self._site.name} compared its data with {most} different ranges, cuts,"
                f" categories or policies of {column!r} already; budget.variants = {most}",
                remedy="Ask as one of the earlier studies did.",
            )
        if len(self._held) == _KNOWN:
            self._held.clear()
        self._held.add(study.digest)

    def _check_fields(self, request: TrainRequest) -> None:
        """Check that the round is approved, and that names are short and printable."""
        study = request.study
        rounds = rounds_asked(study)
        if request.round > rounds:
            raise Refusal(
                f"{self._site.name} approved {rounds} rounds of study {study.name!r}; this is round"
                f" {request.round}."
            )
        if request.exchange > MOST_EXCHANGES:
            raise Refusal(
                f"The request is of exchange {request.exchange} of its round; at most"
                f" {MOST_EXCHANGES} are answered."
            )
        _check_names(arm=request.arm, step=request.step, run=request.run)

    def _check_times(self, request: TrainRequest, answer: Answer) -> None:
        step, study = request.step, request.study
        settings = study.arms.get(request.arm)
        if settings is None or step == TRAIN or step in phases.STEPS:
            return
        most = settings.times_asked(step, study.build_context.layout)
        places = self._records.answers.steps(self._key, answer)
        others = {place for place in places if place.partition(" ")[0] == step} - {answer.step}
        if len(others) >= most:
            times = "once" if most == 1 else f"{most} times"
            raise Refusal(
                f"{settings.algorithm} asks for {step} {times} a round, and {self._site.name} has"
                f" answered it as often in round {request.round} of this run."
            )

    def _note(
        self, request: Request, answer: Answer, question: str, kept_to: Mapping[str, Moment | None]
    ) -> None:
        study, table = request.study, self._records.answers
        what = f"{answer.step} of round {answer.round}" if answer.round else "the final figures"
        if table.is_recovered(self._key, answer):
            raise RunOver(
                f"{self._site.name} answered {what} of this run before its records were restored,"
                " and no longer knows to which parameters: start a new run."
            )
        self.is_repeated = table.question(self._key, answer) is not None
        if not self.is_repeated:
            self._check_kept(request, kept_to)
            self._check_budgets(answer, study.user)
            # Settings are chosen once a run: each further choice would have its own rounds. So is
            # the model of others that is measured.
            choices = {study.user: study.fold is not None}  # -> is_part
            if answer.step == FINAL_FIGURES and self._site.name != study.user:
                choices[f"{study.user} measured"] = False
            choose = partial(table.choose, self._key, answer)
            if not all(choose(what, is_part=is_part) for what, is_part in choices.items()):
                raise RunOver(
                    f"{self._site.name} answers this run of study {study.name!r} with the settings,"
                    " the arm and the model that were chosen first, and not with others: start a"
                    " new run."
                )
        if not table.note(self._key, answer, question):
            once = (
                f"{self._site.name} answered {what} of this run once, to other parameters or from"
                " another state of what it keeps. It does not answer it twice"
            )
            # Beyond the first exchange of a round that is done again, others' answers may differ.
            if isinstance(request, TrainRequest) and request.exchange > 1:
                raise Refusal(f"{once}; the next round may go on.")
            raise RunOver(f"{once}: start a new run.")

    def _check_kept(self, request: Request, kept_to: Mapping[str, Moment | None]) -> None:
        for arm, last in kept_to.items():
            moment, which = moments_of(request)[arm], (request.study.digest, request.run, arm)
            if (noted := self._records.answers.kept(self._key, *which)) is None:
                continue
            since, to = Moment(*noted[:2]), Moment(*noted[2:])
            is_older = last is not None and last < to < moment  # restored alone
            if is_older or (last is None and since < moment):
                raise RunOver(
                    f"{self._site.name} has lost what it keeps of {arm} in this run (compute.state"
                    " in its site file): start a new run."
                )

    def _check_budgets(self, answer: Answer, user: str) -> None:
        used, is_round = self._records.answers.used(self._key), answer.round > 0 or answer.is_fold
        which = self._key, answer.study, answer.run, user
        self._refuse(no_run_left(self._site, self._records, *which))
        if not (is_round and self._records.answers.steps(self._key, answer)):
            needs = Needs(runs=0, rounds=int(is_round), evaluations=int(not is_round))
            self._refuse(*lacking(self._site.budget, used, needs))

    def _refuse(self, *problems: str | None) -> None:
        if found := [problem for problem in problems if problem is not None]:
            remedy = "Ask the hospital to raise that in its site file."
            raise Refusal(f"{self._site.name} answers no more: {'; '.join(found)}", remedy=remedy)

    def _ask(self, study: Study) -> str:
        """Approve by the site file's rule, or leave the study for a person.

        Studies that the limits refuse are refused first, so that nobody reviews or approves them.
        """
        check_study(self._site, part_asked(self._site, study))
        entry = entry_of(study, self._records, self._coordinator)
        if self._site.approval.automatic == "within_limits" and study.fold is None:
            try:
                self._check_declined(study)
            except Refusal:
                self._keep_for_a_person(entry)  # who may review it after all
                raise
            if full := too_many_approved(self._site, self._records):
                remedy = "Ask the hospital to raise it in its site file."
                raise Refusal(f"{self._site.name} approves no further study: {full}", remedy=remedy)
            self._records.studies.put(
                replace(entry, state="approved", decided_by=WITHIN_LIMITS, decided=now())
            )
            return study.digest
        if study.fold is None:  # people decide about whole studies
            if self._records.studies.get(study.digest) is None:
                self._keep_for_a_person(entry)
            self._waiting[study.digest] = study
        raise Undecided(
            f"nobody at {self._site.name} has approved study {study.name!r}"
            f" ({study.digest[:12]}) yet; somebody there decides with `erosion review SITE.toml`"
        )

    def _check_declined(self, study: Study) -> None:
        if declined_before(self._site, study, self._records) is not None:
            raise Refusal(  # without the name: it may be another coordinator's study
                f"somebody at {self._site.name} declined a study, and {study.name!r}"
                f" ({study.digest[:12]}) asks no less",
                remedy="Ask the hospital to look at it with `erosion review SITE.toml`, or ask for"
                " fewer columns.",
            )

    def _keep_for_a_person(self, entry: StudyEntry) -> None:
        if len(entry.content) > LONGEST_STUDY:
            raise Refusal(
                f"The study has {len(entry.content)} characters; {self._site.name} keeps at"
                f" most {LONGEST_STUDY} for a person to decide about."
            )
        if len(self._records.studies.all("pending")) >= MOST_PENDING:
            raise Refusal(
                f"{self._site.name} has {MOST_PENDING} studies waiting for a person already;"
                " `erosion review` there decides about them."
            )
        self._records.studies.put(entry)


def question_hash(request: Request, kept: Mapping[str, Tensor]) -> str:
    """Return the hash of everything that an answer is computed from, including `kept`."""
    tensors: dict[str, Tensor | None] = {f"\0kept/{name}": tensor for name, tensor in kept.items()}
    if isinstance(request, EvaluateRequest):
        enclosed = {
            f"{arm}/{name}": tensor
            for arm, named in request.enclosed.items()
            for name, tensor in named.items()
        }
        words = str(request.scaling), str(sorted(request.rounds.items()))
        return hash_of({**request.parameters, **tensors, **enclosed}, *words)
    if request.step in phases.STEPS:
        return ""  # which the sum records note: a resumed round has fresh keys
    values = sorted(item for item in request.values.items() if item[0] != phases.ATTEMPT)
    return hash_of(tensors, request.received.hex(), str(values))


def _check_names(**names: str) -> None:
    for name, value in names.items():
        # as the log writes it, for finding answers again
        if not value.isascii() or value != printable(value, at_most=_LONGEST_NAME):
            raise Refusal(f"The request's {name} is too long, or is not in plain letters.")
