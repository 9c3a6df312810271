"""What the words of an error tell the coordinator: nothing of a site's files, nor of its data."""

import ast
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from erosion_client.consent.approvals import decide, entry_of
from erosion_client.consent.consent import Consent
from erosion_client.records.records import Records
from erosion_client.site_file import Site
from erosion_client.training.hospital import Hospital
from erosion_common.errors import ErosionError, ModelError, Refusal
from erosion_common.protocol import wire
from erosion_common.protocol.messages import TrainRequest
from erosion_common.study.study import Study
from tests.support.installed_package import forgotten_afterwards
from tests.support.said import raises, says
from tests.support.served import Served
from tests.support.small_study import make_site, make_study, twenty_patients

ROOT = Path(__file__).resolve().parents[2]
QUOTES_ALL = (Refusal, wire.AnotherVersion)  # whose `public` is the whole message
DIM = 6  # of the logistic regression


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from forgotten_afterwards(monkeypatch)


def words_sent(site: Site, study: Study) -> str:
    """With which an approved introduction is declined."""
    words = Served(site, study).refusal(wire.DESCRIBE, wire.encode_describe(study, "r"))
    assert words
    return words


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


# Where patients, their counts or updates of them are at hand, a Refusal may quote this alone: what
# the request, the study or the limits say, and nothing of files or computed from patients.
NEAR_DATA = {"dataset", "disclosure", "evaluation", "records", "sealed", "training", "algorithms"}
QUOTED = """
', '.join(allowed) | ', '.join(arms) | ', '.join(bad) | ', '.join(names)
', '.join(settings.site_steps()) | ', '.join(sorted(strangers)) | ', '.join(sorted(unknown))
', '.join(study.everyone) | _REMEDY | _in_words(short, _for_more_steps)
_in_words(small, _for_more_rows) | arm | built | called | cells.cell | columns | cost | delta | dim
fewer | fewest | first_mistake(mismatch, 'form') | fold.cut | fold.number | fold.of | folds[0].of
folds_key(folds) | given | hospital | in_trials | key | lacking | left
len(scaling.deviation) | len(scaling.mean) | len(request.parameters) | len(sent) | length | limit
limits.largest_round | limits.max_rounds | MOST_MODELS
limits.min_batch_size | limits.min_class | limits.min_local_steps | longest | most | name
needed | other | parameters.dtype | part | place.round | problem | problem or 'are of several'
arm.algorithm | release.arm | release.round
remedy | remedy(size) | request.arm | request.round | request.step | said | self._name
self._site.name | self.algorithm | self.cell | self.name | self.study.scaling | settings.algorithm
site.limits.epsilon | site.name | str(problem) | study.name | study.rounds | study.user
task.outcome
training.batch_size | training.epochs | training.steps | tuple(parameters.shape)
tuple(tensor.shape) | what | where | why_not | work.agent | work.smallest_cell
"""


def test_near_data_a_refusal_quotes_the_request_the_study_and_the_limits_alone() -> None:
    quoted: set[str] = set()
    for path, tree in modules():
        if path.relative_to(ROOT).parts[2] not in NEAR_DATA:
            continue
        joined = [tree] if path.name == "limits.py" else []  # its reasons are
        for place in (*joined, *refusals_in(tree)):
            quoted |= {*quoted_in(place)}
            if isinstance(place, ast.Call):
                plain = (ast.Constant, ast.JoinedStr)
                given = [*place.args, *(keyword.value for keyword in place.keywords)]
                quoted |= {ast.unparse(a) for a in given if not isinstance(a, plain)}
    assert quoted == {part for line in QUOTED.strip().splitlines() for part in line.split(" | ")}
