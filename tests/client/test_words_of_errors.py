"""What the words of an error tell the coordinator: nothing of a site's files, nor of its data."""

import ast
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Context, Message, RecordDict

from erosion_client.connection.serve import make_app
from erosion_client.consent.approvals import decide, entry_of
from erosion_client.consent.consent import Consent
from erosion_client.records.records import Records
from erosion_client.site_file import Site
from erosion_client.training.hospital import Hospital
from erosion_common.errors import ErosionError, ModelError, Refusal
from erosion_common.protocol import wire
from erosion_common.protocol.flower import RequestMessage, read_error
from erosion_common.protocol.messages import TrainRequest
from erosion_common.study.study import Study
from tests.support.installed_package import forgotten_afterwards, install
from tests.support.said import raises, says
from tests.support.small_study import make_site, make_study, twenty_patients

ROOT = Path(__file__).resolve().parents[2]
QUOTES_ALL = (Refusal,)  # whose `public` is the whole message
DIM = 6  # of the logistic regression

# What a Refusal may quote: of the request, of the study, of the site's limits and budgets. Nothing
# of files, of columns' names at the site, or computed from patients.
OF_THE_REQUEST = {
    "', '.join(bad)",  # hospitals in a sealed round's roster
    "', '.join(sorted(strangers))",
    "', '.join(sorted(unknown))",
    "_short(study)",
    "arm",
    "first_mistake(mismatch, 'form')",
    "fold.cut",
    "fold.number",
    "fold.of",
    "len(entry.content)",
    "len(pooled.deviation)",
    "len(pooled.mean)",
    "other",
    "parameters.dtype",
    "place.round",
    "printable(request.step)",
    "release.arm",
    "release.round",
    "request.arm",
    "request.exchange",
    "request.round",
    "request.step",
    "step",
    "tuple(parameters.shape)",
    "tuple(tensor.shape)",
    "what",  # a step of a round; this study, or all
    "work.round",
    "work.step",
}
OF_THE_STUDY = {
    "kind",  # of an installed part: a model, a method, a task
    "sha256",  # of the package that the study names
    "', '.join(arms)",
    "', '.join(names)",
    "', '.join(settings.site_steps())",
    "', '.join(study.hospitals)",
    "_in_words(short, _for_more_steps)",
    "_in_words(small, _for_more_rows)",
    "column",  # as the study calls it
    "columns",
    "cost",  # by the study's noise
    "dim",
    "fewer",  # what to write instead
    "folds[0].of",
    "folds_key(folds)",
    "in_trials",
    "label",  # a column, as the study calls it
    "length",
    "longest",  # rounds of the study
    "method",
    "name",  # the study's, a hospital's or a tensor's
    "part",
    "problem",  # of the coordinator's weights or question, by the limits; in limits.py, of a study
    "remedy",
    "remedy(size)",
    "rounds",
    "self.study.scaling",
    "settings.algorithm",
    "study.model.name",
    "study.name",
    "study.rounds",
    "study.user",
    "task.outcome",
    "times",
    "training.batch_size",
    "training.epochs",
    "training.steps",
    "where",  # a fold of the study
    "why_not",  # the ledger of sums: words of the sealed site, with the round's number
}
OF_THE_SITES_LIMITS = {
    "', '.join(allowed) or 'none'",  # names in limits.installed_models and the like
    "allowed[name]",  # the hash there
    "', '.join(limits.models)",
    "', '.join(limits.studies)",
    "'; '.join(problems)",  # what budgets lack for the study
    "'; '.join(reasons)",  # each of them in limits.py
    "LONGEST_STUDY",
    "MOST_PENDING",
    "_MOST_EXCHANGES",
    "after",  # epsilon
    "budget.evaluations",
    "budget.rounds",
    "budget.used_up('evaluations')",
    "budget.used_up('rounds')",
    "budget.used_up('runs_per_study')",
    "delta",
    "each",
    "entry.digest[:12]",  # of the study, which the coordinator has
    "epsilon_of(before, delta)",
    "full",  # how many studies were approved
    "left",  # of a budget
    "needs.rounds",  # the study's
    "key",  # limits.epsilon or budget.epsilon
    "len(runs)",
    "limit",
    "built",  # parameters of the study's model
    "limits.largest_round",
    "limits.max_parameters",
    "limits.max_rounds",
    "limits.min_batch_size",
    "limits.min_cell",
    "limits.min_class",
    "limits.min_local_steps",
    "limits.min_patients",
    "most",
    "self._name",
    "self._site.name",
    "self.cell",
    "self.name",
    "site.limits.epsilon",
    "site.name",
    "used.evaluations",
    "used.rounds",
    "work.agent",
}


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from forgotten_afterwards(monkeypatch)


def words_sent(site: Site, study: Study, request: TrainRequest | None = None) -> str:
    """With which an approved request is declined: the introduction, or a step of a round."""
    records = Records.of(site)
    decide(records, entry_of(study, records), approve=True, by="somebody")
    app = make_app(Hospital(site, secret=b"s" * 32), Consent(site, records, "c"))
    content = wire.encode_describe(study, "r") if request is None else wire.encode_train(request)
    kind = wire.DESCRIBE if request is None else wire.TRAIN
    asked = RequestMessage(content, "1", 2, kind, group_id="", ttl=60.0)
    reply: Message = app(asked, Context(1, 2, {}, RecordDict(), {}))
    assert reply.has_error()
    return read_error(reply.error).reason


def site_with_weights(folder: Path, **keys: Any) -> Site:
    computes = {"state": folder / "state", "weights": folder / "weights"}
    return make_site(folder, twenty_patients(), name="b", file="b.csv", compute=computes, **keys)


@pytest.mark.parametrize("content", [None, b"another file", "is fitting"], ids=str)
def test_a_file_of_weights_that_is_not_as_the_study_says_is_not_told_of(
    tmp_path: Path, content: bytes | str | None
) -> None:
    site, file, named = site_with_weights(tmp_path), tmp_path / "weights" / "net.pt", "0" * 64
    file.parent.mkdir()
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif content:
        torch.save({"the ward's own layer": torch.zeros(2)}, file)
        named = hashlib.sha256(file.read_bytes()).hexdigest()
    model = {"name": "logistic", "pretrained": {"file": "net.pt", "sha256": named}}
    words = words_sent(site, make_study(model=model))
    assert words == "the study's model cannot be used at the site; its own log says why"


def test_an_installed_model_tells_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = """
        from torch import nn

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.out = nn.Linear(3, 2)

            def forward(self, inputs):
                if inputs.shape[0] == 1 and self.training:
                    raise ValueError(f"patient {inputs}")
                return self.out(inputs)

        def make(input_shape, num_outputs):
            return Net()
    """
    sha256 = install(tmp_path, monkeypatch, source, package="ward_words")
    model = {"name": "installed", "entry_point": "small-net", "sha256": sha256}
    study = make_study(model=model, privacy={"epsilon": 3.0, "learning_rate": 1.0})
    limits = {"min_patients": 2, "installed_models": {"small-net": sha256}}
    site = site_with_weights(tmp_path, limits=limits)
    request = TrainRequest(study, "fedavg", 1, torch.zeros(8), None, "r", {})
    words = words_sent(site, study, request)
    assert words == "the study's model cannot be used at the site; its own log says why"


def test_data_that_changed_are_told_of_without_where_they_are(tmp_path: Path) -> None:
    study = make_study(user="b")
    site = site_with_weights(tmp_path)
    first = Hospital(site, secret=b"s" * 32)
    first.describe(study, "r")
    first.answer(TrainRequest(study, "local", 1, torch.zeros(DIM), None, "r", {}))
    (tmp_path / "b.csv").write_text(twenty_patients() + "44,f,1\n")
    with raises(Refusal, "changed", "since") as refusal:
        Hospital(site, secret=b"s" * 32).describe(study, "r")
    assert "b.csv" not in refusal.value.public


def test_a_column_is_called_what_the_study_calls_it(tmp_path: Path) -> None:
    columns = {"age": "gebdat", "years": "gebdat"}
    text = twenty_patients().replace("age", "gebdat", 1)
    site = make_site(tmp_path, text, name="b", file="b.csv", compute={"state": tmp_path / "state"})
    data = site.data.model_copy(update={"columns": columns})
    site = site.model_copy(
        update={"data": data, "budget": site.budget.model_copy(update={"variants": 2})}
    )
    records = Records.of(site)
    consent = Consent(site, records, "c")
    said = ""
    for number, name in enumerate(["age", "age", "years"]):
        feature = {"name": name, "range": [0, 120 + number], "unit": "years"}
        task = {**make_study().task.model_dump(exclude_defaults=True), "features": [feature]}
        study = make_study(name=f"study-{number}", task={**task, "kind": "tabular"})
        decide(records, entry_of(study, records), approve=True, by="somebody")
        try:
            consent.check(study)
        except Refusal as refusal:
            said = refusal.public
    assert says(said, "'years'", "already")


def kinds_of(error: type[ErosionError]) -> Iterator[type[ErosionError]]:
    for kind in error.__subclasses__():
        yield kind
        yield from kinds_of(kind)


def test_of_every_other_error_the_kind_alone_is_told() -> None:
    kinds = {*kinds_of(ErosionError)}
    assert ModelError in kinds
    for kind in kinds:
        said = _made(kind, "ward-7/patients.csv: 4711").public
        assert ("4711" in said) == issubclass(kind, QUOTES_ALL), kind.__name__


def _made(kind: type[ErosionError], text: str) -> ErosionError:
    """One with that message, whatever its kind is made of."""
    found = kind.__new__(kind)
    found.args = (text,)
    return found


def modules() -> Iterator[tuple[Path, ast.Module]]:
    for folder in ("client", "common"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path, ast.parse(path.read_text(encoding="utf-8"))


def quoted_in(tree: ast.AST) -> Iterator[str]:
    return (ast.unparse(n.value) for n in ast.walk(tree) if isinstance(n, ast.FormattedValue))


def refusals_in(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in (
            "Refusal",
            "RunOver",
            "Undecided",
        ):
            yield node


def test_every_refusal_quotes_nothing_but_the_request_the_study_and_the_limits() -> None:
    quoted: set[str] = set()
    for path, tree in modules():
        places: list[ast.AST] = [*refusals_in(tree)]
        if path.name == "limits.py":  # its reasons are joined
            places = [tree]
        if path.name in ("packages.py", "privacy.py"):  # one of them
            reasons = ("problem_with_part", "_over_limit")
            places += [n for n in tree.body if getattr(n, "name", "") in reasons]
        for place in places:
            quoted |= {*quoted_in(place)}
            if isinstance(place, ast.Call):
                arguments = (
                    a for a in place.args if not isinstance(a, ast.Constant | ast.JoinedStr)
                )
                quoted |= {ast.unparse(argument) for argument in arguments}
    known = OF_THE_REQUEST | OF_THE_STUDY | OF_THE_SITES_LIMITS
    assert quoted - known == set()
    assert known - quoted == set()


def test_nothing_that_reads_a_file_is_told_to_raise_a_refusal() -> None:
    handed_on = [
        f"{path.relative_to(ROOT)}: {ast.unparse(node)}"
        for path, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) not in ("isinstance", "pytest.raises")
        for argument in [*node.args, *(keyword.value for keyword in node.keywords)]
        if ast.unparse(argument)
        in (
            "Refusal",
            "RunOver",
            "Undecided",
        )
    ]
    assert handed_on == []
