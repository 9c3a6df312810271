"""What `erosion review` shows of a study: what it asks, what leaves, what changed."""

import json
from pathlib import Path
from typing import Any

import pytest

from erosion_client.consent.approvals import decide, entry_of, leads_to
from erosion_client.consent.consent import Consent
from erosion_client.consent.review import asked, leaving, review
from erosion_client.records.records import Records
from erosion_common.errors import StudyError
from erosion_common.rounds.selection import trials
from tests.support.approval import approve, request, site, study
from tests.support.said import raises, says
from tests.support.sealed_study import ARM, sealed_study

TASK = {"kind": "tabular", "target": "y", "classes": ["no", "yes"], "features": ["x1", "x2"]}
IMAGES = {"kind": "image", "shape": [1, 28, 28], "classes": ["a", "b"]}
GRADES = [{"name": f"grade {value}", "values": [value]} for value in range(4)]
MANY = {"name": "sex", "categories": ["f", "m", *(f"code {n}" for n in range(1_500))]}
MISSING = ["age", {"name": "crp", "missing": "drop"}, {"name": "ldh", "missing": "impute"}]
PRIVACY = {"epsilon": 5, "delta": 1e-5, "clip_norm": 1.0, "learning_rate": 0.1}
SIZES = {"weight_erosion": [{"size_penalty": size} for size in (0.1, 0.2, 0.3)], "local": []}
ONE_PASS = {"training": {"epochs": 1, "batch_size": 4}}
PRIVATE = {"privacy": PRIVACY, "arms": {"fedavg": {}, "local": {}}, "scaling": "user"}


@pytest.fixture
def records(tmp_path: Path) -> Records:
    return Records(tmp_path / "state", "b")


def text_of(folder: Path, records: Records, at: str = "b", **changes: Any) -> str:
    return "\n".join(review(site(folder, name=at), study(**changes), records))


@pytest.mark.parametrize(
    ("at", "changes", "said"),
    [
        ("b", {}, "a model update of 6 numbers"),
        ("b", {}, "never: a patient's row"),
        ("b", {"hospitals": ["a", "b", "c", "d"]}, "this hospital and 3 others\n"),
        ("b", {"user": "c", "hospitals": ["c", "d"]}, "c, d; b is not among them"),
        ("a", {"selection": {"folds": 2}}, "one candidate for each arm, and no other"),
        ("b", {"rounds": 1, "arms": {"evidence_erosion": {}}}, "in 1 round for 1 arm"),
        ("b", ONE_PASS, "a round is 1 pass"),
        ("b", {"arms": {"evidence_erosion": {}}}, "6 numbers and 1 further number\n"),
        ("b", {**ONE_PASS, "arms": {"evidence_erosion": {}}}, "how many mini-batches each"),
        ("b", {"training": {"steps": 5, "batch_size": 4, "order": "sequential"}}, "file's order"),
        ("b", {"task": TASK | {"features": MISSING}}, "lack no value of crp\n"),
        ("b", {"task": TASK | {"features": MISSING, "missing": "drop"}}, "of age, crp, y"),
        ("b", {"task": TASK | {"classes": GRADES}}, "each of 4 classes"),
        ("b", {"task": TASK | {"features": ["age", MANY]}}, "sex (1,502 categories))"),
        ("b", {"arms": {"fedlin": {}, "local": {}}}, "fedlin: what the steps gradient"),
        ("b", {"user": "b", "scaling": "user"}, "for this hospital's means"),
        ("b", {"user": "b", "scaling": "federated"}, "for the pooled"),
        ("b", {"scaling": "user"}, "of each column patients"),
        ("b", {"task": IMAGES, "model": {"name": "mnist_cnn"}}, "by what the study predicts"),
        ("b", {"selection": {"folds": 2}}, "3 rounds for 1 arm (weight_erosion)"),
        ("b", {"selection": {"folds": 2}}, "before that 2 trials of 4 rounds"),
        ("b", {"arms": {"local": {}}, "selection": {"folds": 2}}, "no local training"),
        ("a", PRIVATE, "in arms that ask nobody else"),
    ],
)
def test_it_names_what_is_asked_and_what_leaves(
    tmp_path: Path, records: Records, at: str, changes: dict[str, Any], said: str
) -> None:
    if changes.get("task") is IMAGES:
        changes = {"scaling": "none", **changes}
    assert said in text_of(tmp_path, records, at, **changes)


@pytest.mark.parametrize(
    ("changes", "unsaid"),
    [
        ({}, "file's order"),
        ({"task": TASK | {"classes": GRADES[:2]}}, "each update has a part"),
        ({"task": TASK | {"features": ["age", MANY | {"categories": ["f", "m"]}]}}, "categories)"),
        ({"arms": {"fedlin": {}, "local": {}}}, "local: what"),
        ({"arms": {"local": {}}, "selection": {"folds": 2}}, "trial of"),
        (PRIVATE, "mini-batches of"),
        ({}, "Refused"),
    ],
)
def test_it_names_nothing_that_is_not_asked(
    tmp_path: Path, records: Records, changes: dict[str, Any], unsaid: str
) -> None:
    assert unsaid not in text_of(tmp_path, records, **changes)


@pytest.mark.parametrize("scaling", ["none", "user", "federated", "local"])
def test_the_users_means_leave_where_its_columns_are_scaled(tmp_path: Path, scaling: str) -> None:
    said = "by which its columns are scaled"
    at_the_user = "\n".join(leaving(site(tmp_path, name="a"), study(scaling=scaling)))
    assert (said in at_the_user) == (scaling != "none")
    assert said not in "\n".join(leaving(site(tmp_path), study(scaling=scaling)))


@pytest.mark.parametrize(("method", "number"), [("validation", 4), ("cross_validation", 20)])
def test_it_counts_the_trials(tmp_path: Path, records: Records, method: str, number: int) -> None:
    selection = {"method": method, "folds": 5, "candidates": SIZES}
    base = study(selection=selection)
    assert number == sum(len(folds) for arm in base.arms for folds in trials(base, arm))
    assert f"{number} trials" in text_of(tmp_path, records, "a", selection=selection)


def test_it_shows_every_key_with_its_value(tmp_path: Path, records: Records) -> None:
    def last_keys(value: object, place: str = "") -> list[tuple[str, object]]:
        if isinstance(value, dict) and value:
            return [leaf for key, inner in value.items() for leaf in last_keys(inner, str(key))]
        if isinstance(value, list) and value and isinstance(value[0], dict):
            return [leaf for inner in value for leaf in last_keys(inner, place)]
        return [(place, value)]

    base = study(training={"steps": 2, "batch_size": 4, "learning_rate": 0.0375}, seed=77)
    lines = review(site(tmp_path), base, records)
    for key, value in last_keys(json.loads(base.canonical_json())):
        assert any(line.endswith(f"{key} = {json.dumps(value)}") for line in lines), key


def test_it_names_methods_and_hospitals(tmp_path: Path, records: Records) -> None:
    methods = {"fedavg": "fedlin", "local": "fedavg", "mine": "local"}
    arms = {name: {"algorithm": method} for name, method in methods.items()}
    lines = text_of(tmp_path, records, arms=arms).splitlines()
    for name, method in methods.items():
        (line,) = [line for line in lines if line.startswith(f"  - {name}: the method")]
        assert method in line
        assert ("every hospital" in line) == ("another method" in line) == (name != "mine")


def test_no_change_hides_behind_others(tmp_path: Path, records: Records) -> None:
    approve(records, study(task=TASK | {"features": [f"a{number}" for number in range(100)]}))
    renamed = TASK | {"features": [f"aa{number}" for number in range(100)]}
    training = {"steps": 2, "batch_size": 4, "learning_rate": 5.0}
    for name in ("small", "other"):
        lines = text_of(tmp_path, records, name=name, task=renamed, training=training).splitlines()
        (at,) = [at for at, line in enumerate(lines) if line.startswith("Changed since")]
        assert "training.learning_rate: 0.1 -> 5.0" in "\n".join(lines[at : at + 3])
        gone = [line for line in lines if "-> (not there)" in line and ".name" in line]
        assert len(gone) == 100


def test_names_are_whole_and_lookalikes_marked(tmp_path: Path, records: Records) -> None:
    long = ["x" * 150 + end for end in ("1", "2")]
    quoted = "a, b) and   nothing else"
    names = ["age", "\u0430ge", "weight\u200b", "weight", "gr\u00f6\u00dfe", *long, quoted]
    arms = {"local": {}, "loca1": {"algorithm": "fedavg"}}
    text = text_of(tmp_path, records, task=TASK | {"features": names}, arms=arms)
    for shown in ("\\u0430ge", "weight\\u200b", "gr\u00f6\u00dfe,", *long, '"a, b) and nothing'):
        assert shown in text
    alike = [line for line in text.splitlines() if line.startswith("  look alike")]
    assert any("local" in line and "loca1" in line for line in alike)
    assert any("age" in line and "\\u0430ge" in line for line in alike)
    assert any("weight" in line for line in alike)


def test_every_column_is_named_the_split_and_the_outcome_too(
    tmp_path: Path, records: Records
) -> None:
    columns = [f"x{number}" for number in range(30)] + ["hiv_status"]
    task = TASK | {"target": "pregnant", "features": columns}
    text = text_of(tmp_path, records, task=task, user="b", evaluation={"split_column": "ward"})
    assert f"31 columns ({', '.join(columns)})" in text
    assert "(pregnant), and ward" in text
    assert "30%" not in text


@pytest.mark.parametrize("people", [1, 2])
@pytest.mark.parametrize("first", [True, False])
def test_nobody_approves_over_a_decision_that_came_while_they_read(
    records: Records, people: int, first: bool
) -> None:
    read_by_both = entry_of(study(), records)
    decided = decide(records, read_by_both, approve=first, by="A", people=people)
    with raises(StudyError, "A", decided.state, "again"):
        decide(records, read_by_both, approve=True, by="B", people=people)
    assert records.studies.get(decided.digest) == decided
    assert decide(records, read_by_both, approve=False, by="B", people=people).state == "declined"


def test_repeating_a_decision_changes_nothing(tmp_path: Path, records: Records) -> None:
    entry = entry_of(study(), records)
    first = decide(records, entry, approve=True, by="Dr. A")
    assert decide(records, entry, approve=True, by="Dr. A") == first
    decide(records, entry, approve=False, by="Dr. B")
    decide(records, entry_of(study(), records), approve=True, by="Dr. C")
    decisions = [(state, by[-1]) for state, by, _ in records.studies.decisions(entry.digest)]
    assert decisions == [("approved", "A"), ("declined", "B"), ("approved", "C")]
    lines = review(site(tmp_path), study(), records)
    assert [line[:17] for line in lines if " by Dr. " in line] == [
        "Approved by Dr. A",
        "Declined by Dr. B",
        "Approved by Dr. C",
    ]


def test_refusals_come_before_approval(tmp_path: Path, records: Records) -> None:
    limited = site(tmp_path, limits={"studies": ["others"]})
    refused = [line for line in review(limited, study(), records) if "limits.studies" in line]
    assert len(refused) == 1


def test_of_a_sealed_study_it_says_what_is_masked_and_what_is_in_the_clear(tmp_path: Path) -> None:
    sealed = sealed_study()
    peer, user = (site(tmp_path, name=name) for name in ("bob", "alice"))
    text = "\n".join(leaving(peer, sealed))
    for how in ("under masks, in every", "with the help", "sealed for", "in the clear, in every"):
        assert f"{ARM}: {how}" in text
    for key in ("min_summed + 1", "above 0.5", "limits.largest_share"):
        assert key in text
    assert "local:" not in text  # which asks the user alone
    assert f"names {len(sealed.hospitals) - 1}\n" in text  # the user's is in no sum
    careful = site(tmp_path, name="bob", limits={"min_summed": len(sealed.hospitals) - 1})
    assert "in none" in "\n".join(leaving(careful, sealed))
    noisy = sealed_study(arms={"evidence_erosion": {}})
    assert "1 further number" in "\n".join(leaving(peer, noisy))
    for at, of in ((user, sealed), (peer, sealed_study(sealed=False))):
        clear = "\n".join(leaving(at, of))
        assert "all of it" in clear
        assert says(clear, ARM, "every")
        assert "mask" not in clear


@pytest.mark.parametrize(
    "changes", [{}, {"scaling": "user"}, {"scaling": "federated"}, {"evaluation": {"folds": 3}}]
)
def test_it_covers_each_user(tmp_path: Path, records: Records, changes: dict[str, object]) -> None:
    whole = study(user="all", hospitals=["a", "b", "c"], **changes)
    said = {line.removeprefix("  - ") for line in review(site(tmp_path), whole, records)}
    assert {*asked(site(tmp_path), whole.for_user("b"), records)} <= said  # the most of all
    for user in whole.hospitals:
        part = whole.for_user(user)
        assert leads_to(whole, part)
        assert {*leaving(site(tmp_path), part)} <= said
    assert says(said, "most", "3 hospitals")


def test_it_leaves_out_parts_that_a_limit_refuses(tmp_path: Path, records: Records) -> None:
    never = site(tmp_path, limits={"as_user": False})
    for hospitals in (["a", "b", "c"], ["c", "d", "e"]):
        text = "\n".join(review(never, study(user="all", hospitals=hospitals), records))
        assert says(text, "each", f"{3 - ('b' in hospitals)}")
        assert "personal model" not in text


def test_a_part_counts_the_runs_as_the_whole_has_them(tmp_path: Path, records: Records) -> None:
    limited, whole = site(tmp_path, budget={"runs_per_study": 1}), study(user="all")
    approve(records, whole)
    coordinator = limited.coordinator.address  # as it is known without TLS
    consent, part = Consent(limited, records, coordinator), whole.for_user("a")
    consent.authorise(request(part, run="r1"))
    assert "runs of" not in "\n".join(review(limited, part, records))
    consent.check_run(whole.for_user("b"), "r2")
    consent.authorise(request(whole.for_user("b"), run="r2"))
    assert says("\n".join(review(limited, part, records)), "2 runs", "of")


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"task": TASK | {"classes": TASK["classes"][::-1]}}, "task.classes: "),
        ({"task": TASK | {"features": TASK["features"][::-1]}}, "task.features: "),
        ({"arms": dict(reversed(study().arms.items()))}, "arms: "),
    ],
    ids=["classes", "features", "arms"],
)
def test_an_order_that_changed_is_named(
    tmp_path: Path, records: Records, changes: dict[str, Any], place: str
) -> None:
    """The last class is the one that is predicted."""
    approve(records, study())
    assert place in text_of(tmp_path, records, **changes).partition("Changed since")[2]


def test_classes_that_look_alike_are_marked(tmp_path: Path, records: Records) -> None:
    classes = [{"name": "ill", "values": ["o"]}, {"name": "iII", "values": ["\u043e"]}]
    text = text_of(tmp_path, records, task=TASK | {"classes": classes})
    alike = [line for line in text.splitlines() if line.startswith("  look alike")]
    assert len(alike) == 2
