"""Holds every request against what a person at this site approved, and against its budgets."""

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from erosion.client.consent.account import dataset_of
from erosion.client.consent.contracts import contracts_at, contracts_of, local_name
from erosion.client.consent.decisions import (
    WITHIN_LIMITS,
    book_entry_of,
    decision_about,
    entry_of,
    leading,
    most_runs_of,
    too_many_approved,
)
from erosion.client.consent.declined import declined_before
from erosion.client.consent.needs import lacking, needs_of, rounds_asked
from erosion.client.consent.question_hash import hash_of_evaluation, hash_of_step
from erosion.client.consent.store import (
    FINAL_FIGURES,
    MOST_PENDING,
    Answer,
    ConsentStore,
    StudyEntry,
    now,
    place,
)
from erosion.client.site_file import Site
from erosion.client.training.kept_state import Moment
from erosion.client.training.limits import check_study, part_asked
from erosion.common.algorithms.base import TRAIN
from erosion.common.errors import Refusal, RunOver, Undecided
from erosion.common.protocol.messages import EvaluateRequest, TrainRequest
from erosion.common.sealed import legs
from erosion.common.study.study import Study
from erosion.common.support.files import version_of
from erosion.common.support.text import printable

_LONGEST_NAME = 200  # characters
LONGEST_STUDY = 2**19  # characters of one that waits for a person
_MOST_EXCHANGES = 32  # of a round
_KNOWN = 64  # studies whose approved study is remembered at most


class Consent:
    """What one site takes part in for one coordinator; raises Refusal and SiteError."""

    def __init__(self, site: Site, store: ConsentStore, coordinator: str) -> None:
        """`coordinator`: what it is known by here, for example its certificate's fingerprint."""
        self._site, self._store, self._coordinator = site, store, coordinator
        self._whose = coordinator, dataset_of(site)  # answers and budgets are of both together
        self._waiting: dict[str, Study] = {}  # by digest, asked about and waiting for a person
        self._seen: tuple[int, ...] = ()
        self._decisions = -1  # that there were when the next was filled
        self._approved: dict[str, str] = {}  # study's digest -> approved digest
        self._held: set[frozenset[tuple[str, str]]] = set()  # columns' contracts, as noted
        self.is_repeated = False  # the last answer: it was given to the same question before

    def check(self, study: Study) -> str:
        """The digest by which the book knows the study; Refusal where nobody has approved it.

        A study that nobody has decided about is kept for `erosion review`. What a person declines
        later is declined from then on.
        """
        approved = self._approved_by(study)
        self._hold(study, approved)
        return approved

    def study_named(self, digest: str) -> str | None:
        """The name of the approved study that a digest is of; None: of none that is known here."""
        entry = self._store.study(self._approved.get(digest, digest))
        return entry.name if entry is not None and entry.state == "approved" else None

    def _approved_by(self, study: Study) -> str:
        if (decisions := self._store.num_decisions()) != self._decisions:
            self._decisions = decisions
            self._approved.clear()
        if (known := self._approved.get(study.digest)) is not None:
            return known
        entry = decision_about(study, self._store)
        if entry is None:
            return self._ask(study)
        if entry.state == "declined":
            raise Refusal(f"{self._site.name} declined study {study.name!r} ({entry.digest[:12]}).")
        if entry.decided_by == WITHIN_LIMITS:
            self._check_declined(study)
        if len(self._approved) == _KNOWN:
            self._approved.clear()
        known_as = (book_entry_of(study, self._store) or entry).digest
        self._approved[study.digest] = known_as
        return known_as

    def _hold(self, study: Study, approved: str) -> None:
        """Before data are read: whether they fit answers yes or no about single patients.

        A study that was answered asks nothing new, however an earlier version counted its columns.
        """
        contracts = contracts_at(self._site, study)
        asked = frozenset(contracts.items())
        if asked in self._held:
            return
        most = self._site.budget.variants
        earlier = contracts_at(self._site, study, by_earlier_version=True)
        known_as = self._store.hold(*self._whose, contracts, earlier, most)
        if known_as is not None and not self._store.runs(*self._whose, approved):
            names = contracts_of(study)  # what a column is called here stays here
            column = next(n for n in names if known_as in (n, local_name(self._site, n)))
            raise Refusal(
                f"{self._site.name} held its data against {most} different ranges, categories or"
                f" policies of {column!r} already; budget.variants = {most}. Ask as one of the"
                " earlier studies did."
            )
        self._held.add(asked)

    def check_run(self, study: Study, run: str | None) -> None:
        """The same before a run begins: one that the budgets have no room for spoils the study."""
        approved = self.check(study)
        if run is None or self._has_begun(study, run):
            return
        self._check_number_of_runs(approved, run)
        used = self._store.used(*self._whose)
        if problems := [*lacking(self._site.budget, used, needs_of(self._site, study))]:
            raise Refusal(
                f"{self._site.name} has not enough left for study {study.name!r}:"
                f" {'; '.join(problems)}. Ask the hospital to raise it in its site file."
            )

    def _has_begun(self, study: Study, run: str) -> bool:
        """By whichever study that leads to it; an earlier version's book may have another one."""
        return any(
            run in self._store.runs(*self._whose, entry.digest)
            for entry in leading(study, self._store.decided())
        )

    def has_news(self) -> bool:
        """A study that was asked about in vain was approved since; said once for each."""
        if not self._waiting or (now_seen := version_of(self._store.path)) == self._seen:
            return False
        self._seen = now_seen
        before = len(self._waiting)
        self._waiting = {
            digest: study
            for digest, study in self._waiting.items()
            if (entry := decision_about(study, self._store)) is None or entry.state != "approved"
        }
        return len(self._waiting) < before

    def note_step(
        self,
        request: TrainRequest,
        kept: Mapping[str, Tensor] | None = None,
        lacks: Mapping[str, Moment] | None = None,
    ) -> None:
        """Note that a step of a round is about to be answered; Refusal where it must not be.

        `kept`: what the site keeps of earlier rounds, and the answer is computed from, too.
        `lacks`: the arms of which it has nothing of the run, and up to which exchange.
        """
        approved = self.check(request.study)
        self._check_fields(request)
        answer = Answer(
            approved,
            request.run,
            request.study.digest,
            request.arm,
            request.round,
            _place_of(request),
        )
        self._check_times(request, answer)
        self._note(request.study, answer, hash_of_step(request, kept or {}), lacks or {})

    def note_kept(self, request: TrainRequest) -> None:
        """Note that the site keeps something of the arm since this exchange, or an earlier one."""
        which = request.study.digest, request.run, request.arm
        since = request.round, request.exchange
        self._store.note_kept(*self._whose, *which, since)

    def note_evaluation(
        self,
        request: EvaluateRequest,
        kept: Mapping[str, Tensor] | None = None,
        lacks: Mapping[str, Moment] | None = None,
    ) -> None:
        """The same for the final figures of a run."""
        approved = self.check(request.study)
        study = request.study
        _check_names(run=request.run)
        # A fold's predictions stay here, so they count as a round and not as final figures.
        number = 0 if study.fold is None else study.rounds + 2
        answer = Answer(approved, request.run, study.digest, "", number, FINAL_FIGURES)
        self._note(study, answer, hash_of_evaluation(request, kept or {}), lacks or {})

    def _check_fields(self, request: TrainRequest) -> None:
        """An approved study has so many rounds, and names are short and printable."""
        study = request.study
        rounds = rounds_asked(study)
        if request.round > rounds:
            raise Refusal(
                f"{self._site.name} approved {rounds} rounds of study {study.name!r}; this is round"
                f" {request.round}."
            )
        if request.exchange > _MOST_EXCHANGES:
            raise Refusal(
                f"The request is of exchange {request.exchange} of its round; at most"
                f" {_MOST_EXCHANGES} are answered."
            )
        _check_names(arm=request.arm, step=request.step, run=request.run)

    def _check_times(self, request: TrainRequest, answer: Answer) -> None:
        """A round asks for a step as often as its method does, and not at every place it could."""
        step, study = request.step, request.study
        settings = study.arms.get(request.arm)
        if settings is None or step == TRAIN or step in legs.STEPS:
            return
        most = settings.times_asked(step, study.build_context.layout)
        places = self._store.steps(*self._whose, answer)
        others = {place for place in places if place.partition(" ")[0] == step} - {answer.step}
        if len(others) >= most:
            times = "once" if most == 1 else f"{most} times"
            raise Refusal(
                f"{settings.algorithm} asks for {step} {times} a round, and {self._site.name} has"
                f" answered it as often in round {request.round} of this run."
            )

    def _check_choice(self, study: Study, answer: Answer) -> None:
        """What trials choose is chosen once a run: each choice would have rounds of its own."""
        if study.fold is not None:
            return
        if not self._store.choose(*self._whose, answer, study.user):
            raise RunOver(
                f"{self._site.name} answers this run of study {study.name!r} with the settings"
                " that were chosen first, and not with others: start a new run."
            )

    def _note(
        self, study: Study, answer: Answer, content: str, lacks: Mapping[str, Moment]
    ) -> None:
        what = f"{answer.step} of round {answer.round}" if answer.round else "the final figures"
        if self._store.is_recovered(*self._whose, answer):
            raise RunOver(
                f"{self._site.name} answered {what} of this run before its book of answers was"
                " restored, and no longer knows to which parameters: start a new run."
            )
        self.is_repeated = self._store.noted(*self._whose, answer) is not None
        if not self.is_repeated:
            self._check_kept(answer, lacks)
            self._store.note_origin(answer.variant, answer.study)
            self._check_budgets(answer)
            self._check_choice(study, answer)
        earlier = self._store.note(*self._whose, answer, content)
        if earlier is not None:
            raise RunOver(
                f"{self._site.name} answered {what} of this run once, to other parameters or from"
                " another state of what it keeps. It does not answer it twice: start a new run."
            )

    def _check_kept(self, answer: Answer, lacks: Mapping[str, Moment]) -> None:
        """Nothing begins afresh in the middle of a run because what was kept is not here."""
        for arm, moment in lacks.items():
            which = answer.variant, answer.run, arm
            since = self._store.kept_since(*self._whose, *which)
            if since is not None and since < (moment.round, moment.exchange):
                raise RunOver(
                    f"{self._site.name} has lost what it keeps of {arm} in this run (compute.state"
                    " in its site file): start a new run."
                )

    def _check_budgets(self, answer: Answer) -> None:
        budget = self._site.budget
        used = self._store.used(*self._whose)
        name = self._site.name
        self._check_number_of_runs(answer.study, answer.run)
        is_begun = bool(self._store.steps(*self._whose, answer))
        if answer.round > 0 and used.rounds >= budget.rounds and not is_begun:
            raise Refusal(
                f"{name} has answered {used.rounds} rounds about these data;"
                f" {budget.used_up('rounds')}"
            )
        if answer.round == 0 and used.evaluations >= budget.evaluations:
            raise Refusal(
                f"{name} has given final figures {used.evaluations} times about these data;"
                f" {budget.used_up('evaluations')}"
            )

    def _check_number_of_runs(self, approved: str, run: str) -> None:
        runs = self._store.runs(*self._whose, approved)
        budget = self._site.budget
        if run in runs or len(runs) < budget.runs_per_study:
            return
        if len(runs) >= (most := most_runs_of(self._site, approved, self._store)):
            each = "" if most == budget.runs_per_study else ", each of which has one user"
            raise Refusal(
                f"{self._site.name} has taken part in {len(runs)} runs of this study{each};"
                f" {budget.used_up('runs_per_study')}"
            )

    def _ask(self, study: Study) -> str:
        """Approve by the site file's rule, or leave the study for a person.

        What the limits refuse is refused before: nobody need look at it, and no rule approves it.
        """
        check_study(self._site, part_asked(self._site, study))
        entry = entry_of(study, self._store, self._coordinator)
        if self._site.approval.automatic == "within_limits" and study.fold is None:
            try:
                self._check_declined(study)
            except Refusal:
                self._keep_for_a_person(entry)  # who may look at it after all
                raise
            if full := too_many_approved(self._site, self._store):
                remedy = self._site.budget.used_up("studies").partition(". ")[2]
                raise Refusal(f"{self._site.name} approves no further study: {full}. {remedy}")
            self._store.put(
                replace(entry, state="approved", decided_by=WITHIN_LIMITS, decided=now())
            )
            return study.digest
        if study.fold is None:  # people decide about whole studies
            if self._store.study(study.digest) is None:
                self._keep_for_a_person(entry)
            self._waiting[study.digest] = study
        raise Undecided(
            f"nobody at {self._site.name} has approved study {study.name!r} ({_short(study)}) yet;"
            " somebody there decides with `erosion review SITE.toml`"
        )

    def _check_declined(self, study: Study) -> None:
        """No rule approves what a person declined under another name."""
        if declined_before(self._site, study, self._store) is not None:
            raise Refusal(  # without the name: it may be another coordinator's study
                f"somebody at {self._site.name} declined a study than which {study.name!r}"
                f" ({_short(study)}) asks no less. Ask the hospital to look at it with `erosion"
                " review SITE.toml`, or ask for fewer columns."
            )

    def _keep_for_a_person(self, entry: StudyEntry) -> None:
        if len(entry.content) > LONGEST_STUDY:
            raise Refusal(
                f"The study has {len(entry.content)} characters; {self._site.name} keeps at"
                f" most {LONGEST_STUDY} for a person to decide about."
            )
        if len(self._store.studies("pending")) >= MOST_PENDING:
            raise Refusal(
                f"{self._site.name} has {MOST_PENDING} studies waiting for a person already;"
                " `erosion review` there decides about them."
            )
        self._store.put(entry)


def _check_names(**names: str) -> None:
    for name, value in names.items():
        # As the log writes it, by which answers are found again.
        if not value.isascii() or value != printable(value, at_most=_LONGEST_NAME):
            raise Refusal(f"The request's {name} is too long, or is not in plain letters.")


def _short(study: Study) -> str:
    return study.digest[:12]


def _place_of(request: TrainRequest) -> str:
    """What is answered once in a round: training, and each other step at its place in the round."""
    return TRAIN if request.step == TRAIN else place(request.step, request.exchange)
