"""`erosion client`: answer for a hospital, or an app, until stopped."""

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from pathlib import Path
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from erosion_client.connection.agent import LOOK_SECONDS, Agent, Until
from erosion_client.connection.credentials import Credentials, credentials_for, known_as
from erosion_client.connection.site_link import SiteLink
from erosion_client.consent.approvals import account_of, used_up
from erosion_client.consent.consent import Consent
from erosion_client.records.account import claim, dataset_of, place_of, site_secret
from erosion_client.records.audit_log import AuditLog, SiteObservers
from erosion_client.records.records import Records
from erosion_client.records.recovery import recover
from erosion_client.site_file import AppSite, Site, load_site, load_with_account
from erosion_client.training.hospital import Hospital
from erosion_client.training.limits import allow_only_these
from erosion_common.algorithms import REGISTRY, load_method, steps_of
from erosion_common.algorithms.base import TRAIN
from erosion_common.errors import ErosionError, ModelError, NotReady, Refusal, SiteError
from erosion_common.protocol import wire
from erosion_common.protocol.flower import CLIENT_APP_RAISED_EXCEPTION, NoAnswer
from erosion_common.sealed import phases
from erosion_common.settings.packages import faults_of_packages
from erosion_common.support.files import version_of
from erosion_common.support.logs import about
from erosion_common.support.status import STATUS_NAME, left_behind
from erosion_common.support.text import printable

logger = logging.getLogger("erosion.site")


RUNS_KEPT = 8  # runs of which the state is kept


class InstalledApp:
    """Answers with the app, keeping its state for a run of the coordinator."""

    def __init__(self, app: ClientApp, site: AppSite) -> None:
        self._app, self._name = app, site.name
        self._node_config = {"name": site.name, **site.app}
        self._states: OrderedDict[int, RecordDict] = OrderedDict()  # by run, used last at the end

    def __call__(self, message: Message, context: Context) -> Message:
        """Return the app's answer; its exceptions become errors without their words."""
        run = context.run_id
        state = self._states.pop(run, RecordDict())
        own = Context(run, context.node_id, dict(self._node_config), state, context.run_config)
        self._states[run] = state
        while len(self._states) > RUNS_KEPT:
            self._states.popitem(last=False)
        try:
            reply = self._app(message, own)
        except Exception as problem:
            # It must neither end the site nor disclose a patient's value in its words.
            logger.exception("%s failed", message.metadata.message_type)
            reason = f"an unexpected {type(problem).__name__} at the site; its own log says more"
            error = Error(CLIENT_APP_RAISED_EXCEPTION, f"{self._name}: {reason}")
            return Message(error, reply_to=message)
        self._states[run] = own.state
        return reply


LONGEST_LOGGED = 1000  # characters of a refusal's reason

Respond = Callable[[RecordDict], RecordDict]


def make_app(hospital: Hospital, consent: Consent) -> ClientApp:
    """Serve `describe`, `train`, every method's other steps, and `evaluate` for one hospital."""
    app, studies = ClientApp(), wire.KnownStudies()

    def describe(record: RecordDict) -> RecordDict:
        study, run = wire.decode_describe(record, studies)
        consent.check_run(study, run)
        return wire.encode_header(hospital.describe(study, run or ""))

    def taking(step: str) -> Respond:
        def take(record: RecordDict) -> RecordDict:
            request = wire.decode_train(record, studies)
            if request.step != step:  # the log knows the step by the message's type
                raise Refusal(f"A message of {step!r} that asks for {printable(request.step)!r}.")
            consent.authorise(request, hospital.keeps(request), hospital.kept_to(request))
            result = hospital.answer(request)
            consent.commit(request, hospital.kept_to(request))
            return wire.encode_result(result)

        return take

    def evaluate(record: RecordDict) -> RecordDict:
        request = wire.decode_evaluate(record, studies)
        consent.authorise(request, hospital.keeps(request), hospital.kept_to(request))
        return wire.encode_result(hospital.evaluate(request))

    def summarise(record: RecordDict) -> RecordDict:
        study, _ = wire.decode_describe(record, studies)
        consent.check(study)
        return wire.encode_header(hospital.summarise(study))

    app.query("summary")(_handler(hospital.name, summarise))
    app.query("describe")(_handler(hospital.name, describe))
    app.train()(_handler(hospital.name, taking(TRAIN)))
    of_methods = {step for arm in REGISTRY for step in steps_of(arm)} - {TRAIN}
    for step in of_methods | phases.STEPS:
        app.train(step)(_handler(hospital.name, taking(step)))
    app.evaluate()(_handler(hospital.name, evaluate))
    return app


def _handler(name: str, answer: Respond) -> Callable[[Message, Context], Message]:
    def handle(message: Message, context: Context) -> Message:
        del context  # the site keeps its own state; Flower's would go through its store
        try:
            with faults_of_packages():
                return Message(answer(message.content), reply_to=message)
        except wire.UnknownStudy as problem:
            return Message(wire.encode_header(problem.wanted), reply_to=message)
        except NotReady:  # this site signs out, so that a round waits for it
            raise
        except ErosionError as problem:
            kind = printable(message.metadata.message_type, at_most=60)
            logger.error("%s: %s", kind, printable(str(problem), at_most=LONGEST_LOGGED))
            refused = NoAnswer(problem.problem.code, name, problem.public)
        except Exception as problem:
            # No failure here may end the site or disclose a patient's value.
            logger.exception("%s failed", message.metadata.message_type)
            kind = type(problem).__name__
            what = f"an unexpected {kind} at the site; its own log says more"
            refused = NoAnswer(kind, name, what)
        return Message(refused.encode(), reply_to=message)

    return handle


STOP_SECONDS = 10.0  # for the sites of a program that is stopped
SETTLED_SECONDS = 0.5  # for which a changed file must stay the same: half of one may be readable
MOST_LOOKS = 20  # for a file that keeps changing
# Fixed while the program runs: its name, its log, and the place of its records.
_KEPT = ("name", "coordinator.address", "records", "log", "compute.state", "compute.account")


class RunningSite:
    """The answers of one hospital.

    Once its site file has changed, nothing is answered by the former one. The site reconnects with
    the new one; until that is usable, it stays signed out and reports why.
    """

    def __init__(
        self,
        path: Path,
        site: Site,
        records: Records,
        *,
        secret: bytes,
        version: tuple[int, ...],
        turn: AbstractContextManager[Any] | None = None,
    ) -> None:
        """Take `site` as read from `path`; `version`: the file's before that. Raises SiteError.

        `turn`: held for an answer, where the program has other sites, too.
        """
        self._path, self._version, self._turn = path, version, turn or nullcontext()
        self._records, self._secret = records, secret
        self.dataset = ""  # the account's name of the data
        self.line: Credentials  # with the files as they were when it connected
        self.news = ""  # of the site file since the program started, in words
        self._take(site)

    def connect(self) -> SiteLink:
        """Return a connection, not open yet, using the files as they are. Raises SiteError."""
        if self.has_changed():
            self._read_again()
        self.line = credentials_for(self._site.coordinator)
        if known_as(self.line) != self.coordinator:  # another authority was installed
            self._take(self._site)
        return self.line.connect()

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer a request; SiteError where the site file has changed, and nothing may leave."""
        with self._turn:
            self._check()
            allow_only_these(self._site.limits)  # of this program: another site's may differ
            answer = self._app(message, context)
            self._check()
        return answer

    def budgets(self) -> dict[str, Any]:
        """Return what is used up: in lines for people here, and as figures for programs.

        With it what the next program compares: how much is noted, and the rules in force.
        """
        lines = [*used_up(self._site, self._records), *self._hospital.disclosed()]
        return {
            "budgets": lines,
            "account": account_of(self._site, self._records),
            "noted": self._records.num_noted(),
            "rules": self._rules(),
        }

    def compare(self, status: Path) -> None:
        """Report which rules differ from those that this site's last program left in `status`.

        A site file that was cut off between two lines is a valid one with fewer limits.
        """
        before = left_behind(status).get("rules")
        if isinstance(before, Mapping) and (keys := [*_differing(before, self._rules())]):
            self.news = f"changed since this site last ran: {', '.join(keys)}"
            logger.warning(
                "%s was %s. If nobody changed them, restore the file from a backup",
                self._path,
                self.news,
            )

    def _rules(self) -> dict[str, Any]:
        return self._site.model_dump(mode="json", include={"limits", "approval", "budget"})

    def has_changed(self) -> bool:
        """Return whether the site file differs from what was last read, or cannot be read."""
        version = version_of(self._path)
        if version != self._version:
            with suppress(SiteError):
                if not [*_differing(self._site.model_dump(), load_site(self._path).model_dump())]:
                    self._version = version  # a comment, or the same content written again
        return version != self._version

    def _check(self) -> None:
        if self.has_changed():
            raise SiteError(
                f"{self._path} was changed; it is read again before anything is answered"
            )

    def _read_again(self) -> None:
        version = _settled(self._path)
        try:
            site = load_site(self._path)
            differing = [*_differing(self._site.model_dump(), site.model_dump())]
            if kept := [key for key in differing if key.startswith(_KEPT)]:
                raise SiteError(f"{', '.join(kept)}: start `erosion client` again for that.")
            claim(site)
            self._take(site)
        except SiteError as problem:
            raise SiteError(
                f"{self._path} was changed, and this site answers nothing until it can use it."
                f" {problem}"
            ) from None
        self._version = version
        self.news = f"changed while this site ran: {', '.join(differing)}"
        logger.info("%s was %s", self._path, self.news)

    def _take(self, site: Site) -> None:
        with self._turn:  # what may be imported is the whole program's
            allow_only_these(site.limits)
            for name, sha256 in site.limits.installed_methods.items():  # so that steps are known
                try:
                    load_method(name, sha256)
                except ModelError as problem:  # no study that names it can be answered
                    logger.error("%s", problem)
        self.line = credentials_for(site.coordinator)
        self.coordinator = known_as(self.line)  # as the records have it
        secret = b"" if site.compute.public_order else self._secret
        hospital = Hospital(site, secret, noise_secret=self._secret, records=self._records)
        consent = Consent(site, self._records, self.coordinator)
        self._app: ClientApp = make_app(hospital, consent)
        self._site, self._hospital, self.consent = site, hospital, consent
        self.dataset = dataset_of(site)


def _settled(path: Path) -> tuple[int, ...]:
    """Return the file's version once it has been stable for a moment. Raises SiteError."""
    version = version_of(path)
    for _look in range(MOST_LOOKS):
        time.sleep(SETTLED_SECONDS)
        seen, version = version, version_of(path)
        if seen == version:
            return version
    raise SiteError(f"{path} is being written all the time")


def _differing(
    before: Mapping[str, Any], after: Mapping[str, Any], place: str = ""
) -> Iterator[str]:
    """Yield which keys of two site files differ: "limits.studies"."""
    for key in {**before, **after}:
        old, new = before.get(key), after.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _differing(old, new, f"{place}{key}.")
        elif old != new:
            yield f"{place}{key}"


def serve_together(paths: Sequence[Path], until: Until) -> None:
    """Serve a hospital for several coordinators, by a site file for each, until interrupted.

    They answer in turn. One that ends costs the others nothing. Raises SiteError where they cannot
    run together, and at the end what the first that failed did.
    """
    if len(paths) == 1:
        serve(paths[0], until)
        return
    _check_together(paths)
    turn, stops = threading.Lock(), [threading.Event() for _ in paths]
    problems: list[BaseException] = []

    def run(path: Path, stop: threading.Event) -> None:
        try:
            serve(path, until, turn=turn, stop=stop)
        except BaseException as problem:  # noqa: BLE001 - raised below, in the main thread
            problems.append(problem)
            if isinstance(problem, ErosionError):
                logger.error("%s serves no more: %s", path, problem)

    threads = [
        threading.Thread(target=run, args=each, daemon=True)
        for each in zip(paths, stops, strict=True)
    ]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            while thread.is_alive():
                thread.join(LOOK_SECONDS)
    except KeyboardInterrupt:
        for stop in stops:
            stop.set()
        for thread in threads:
            thread.join(STOP_SECONDS)
        logger.info("stopped")
        return
    if problems:
        raise problems[0]


def _check_together(paths: Sequence[Path]) -> None:
    """Raise SiteError where site files of one program would share a log, or split an account.

    Each then has its account, so that none is begun twice when they start at once.
    """
    logs: dict[Path, Path] = {}
    accounts: dict[str, tuple[Path, str]] = {}  # by data set
    for path in paths:
        site = load_site(path)
        folder = site.records_folder.resolve()
        if folder in logs:
            raise SiteError(
                f"{logs[folder]} and {path} would keep one log of what was sent, in {folder}",
                remedy="Each needs a folder of its own: write records = 'FOLDER' in one of them,"
                " or leave the file out where it is given twice.",
            )
        logs[folder] = path
        other, name = accounts.setdefault(place_of(site.data), (path, site.account))
        if name != site.account:
            raise SiteError(
                f"{other} and {path} use the same data, with budgets as {name} and as"
                f" {site.account}: what one federation has used up would not count for the other",
                remedy=f"Write account = '{name}' under [compute] in {path}.",
            )
    for path in paths:
        load_with_account(path)


def serve(
    path: Path,
    until: Until,
    *,
    turn: AbstractContextManager[Any] | None = None,
    stop: threading.Event | None = None,
) -> None:
    """Serve a hospital, by its site file, until interrupted or `stop`. Raises SiteError, LinkError.

    `turn`: held for every answer.
    """
    version = version_of(path)  # before reading: what changes meanwhile is newer
    site = load_with_account(path)
    line = credentials_for(site.coordinator)
    secret, records = site_secret(site.consent_folder), Records.of(site)
    running = RunningSite(path, site, records, secret=secret, version=version, turn=turn)
    with (
        about(hospital=site.name, coordinator=line.address),
        closing(records),
        _audit_log(site, lambda: running.dataset) as audit_log,
    ):
        records.check_secret(secret)  # a half-restored backup shows here, not in a round
        recover(records, known_as(line), dataset_of(site), audit_log.path)
        running.compare(site.records_folder / STATUS_NAME)
        watch = SiteObservers(
            site.records_folder,
            audit_log,
            name=site.name,
            coordinator=line.address,
            budgets=running.budgets,
            site_file=lambda: running.news,
            study_named=lambda digest: running.consent.study_named(digest),
            certificate_expires=lambda: running.line.expires,
        )
        agent = Agent(
            running.connect,
            running,
            address=line.address,
            encrypted=line.tls is not None,
            until=until,
            watchers=[watch],
            has_changed=lambda: running.has_changed() or running.line.is_renewed(),
            has_decided=lambda: running.consent.has_news(),
            is_repeated=lambda: running.consent.is_repeated,
            study_named=lambda digest: running.consent.study_named(digest),
            stop=stop,
        )
        _run(agent, watch)


def serve_app(site: AppSite, app: ClientApp, until: Until) -> None:
    """Serve an app that is installed here until interrupted. Raises SiteError, LinkError."""
    line = credentials_for(site.coordinator)

    def connect() -> SiteLink:
        nonlocal line
        line = credentials_for(site.coordinator)  # they may have been renewed
        return line.connect()

    with _audit_log(site, str) as audit_log:
        watch = SiteObservers(
            site.records_folder,
            audit_log,
            name=site.name,
            coordinator=line.address,
            certificate_expires=lambda: line.expires,
        )
        agent = Agent(
            connect,
            InstalledApp(app, site),
            address=line.address,
            encrypted=line.tls is not None,
            until=until,
            watchers=[watch],
            has_changed=lambda: line.is_renewed(),
        )
        _run(agent, watch)


def _audit_log(site: AppSite, dataset: Callable[[], str]) -> AuditLog:
    return AuditLog(
        site.records_folder,
        hospital=site.name,
        dataset=dataset,
        file_bytes=site.log.file_megabytes * 2**20,
        keep_days=site.log.keep_days,
    )


def _run(agent: Agent, watch: SiteObservers) -> None:
    try:
        agent.run()
        watch.end("the program ended")
    except KeyboardInterrupt:
        agent.stop.set()
        watch.end("the program was stopped")
        logger.info("stopped")
    except ErosionError as problem:
        watch.end(str(problem))
        raise
