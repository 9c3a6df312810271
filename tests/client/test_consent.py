"""A site's approvals, budgets and its one answer to each question."""

import hashlib
import itertools
import json
import sqlite3
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import tomli_w
import torch

from erosion_client.consent.approvals import (
    contracts_of,
    decide,
    decision_about,
    entry_of,
    leads_to,
    listing,
    named,
)
from erosion_client.consent.consent import Consent
from erosion_client.consent.review import review
from erosion_client.records.account import dataset_of, site_secret
from erosion_client.records.answers import Answer, Used
from erosion_client.records.records import FILE_NAME, Records
from erosion_client.site_file import Budget, Site, load_site
from erosion_client.training import limits as limits_module
from erosion_client.training.limits import needs_of
from erosion_common.errors import Refusal, RunOver, SiteError, StudyError, Undecided
from erosion_common.program.command_line import main
from erosion_common.protocol.messages import EvaluateRequest
from erosion_common.rounds.selection import SelectedSettings, chosen, fold_studies, folds_of, trials
from erosion_common.sealed import phases
from erosion_common.study.sections import Fold
from erosion_common.study.study import Study, load_study
from tests.support.approval import STUDY, approve, request, site, study
from tests.support.said import raises, says


@pytest.fixture
def records(tmp_path: Path) -> Records:
    return Records(tmp_path / "state", "b")


@pytest.fixture
def consent(tmp_path: Path, records: Records) -> Consent:
    return Consent(site(tmp_path), records, "c")


@pytest.fixture
def automatic(tmp_path: Path) -> Site:
    return site(tmp_path, approval={"automatic": "within_limits"})


def evaluation(of: Study, run: str = "r1") -> EvaluateRequest:
    return EvaluateRequest(of, {"local": torch.zeros(3)}, None, run)


def test_a_study_waits_until_a_person_approves_it(records: Records, consent: Consent) -> None:
    with raises(Refusal, "erosion review"):
        consent.check(study())
    assert [entry.state for entry in records.studies.all()] == ["pending"]
    decide(records, records.studies.all()[0], approve=True, by="somebody")
    assert consent.check(study()) == study().digest


@pytest.mark.parametrize("user", ["a", "all"])
def test_an_approval_is_news_once(tmp_path: Path, records: Records, user: str) -> None:
    consent, whole = Consent(site(tmp_path), records, "c"), study(user=user)
    with pytest.raises(Undecided):
        consent.check(whole.for_user("a") if user == "all" else whole)
    assert not consent.has_news()
    assert "Look at" in "\n".join(listing(site(tmp_path), records))
    approve(Records(tmp_path / "state", "b"), whole)  # as `erosion review` opens it
    assert consent.has_news()
    assert not consent.has_news()


def test_a_repeated_answer_is_known(records: Records, consent: Consent) -> None:
    approve(records, study())
    found = []
    for number in (1, 1, 2):
        consent.authorise(request(study(), number))
        found.append(consent.is_repeated)
    assert found == [False, True, False]


@pytest.mark.parametrize("by_rule", [False, True])
def test_a_later_no_holds(tmp_path: Path, records: Records, by_rule: bool) -> None:
    rule = {"automatic": "within_limits"} if by_rule else {}
    here, asked = site(tmp_path, approval=rule), study(seed=by_rule)
    consent = Consent(here, records, "c")
    if not by_rule:
        approve(records, asked)
    consent.authorise(request(asked))
    assert ("by limits" in "\n".join(listing(here, records))) == by_rule
    decide(records, entry_of(study(), records), approve=False, by="somebody")
    with raises(Refusal, "no less" if by_rule else "declined study"):
        consent.authorise(request(asked, 2))


def test_what_the_rule_approved_holds_as_long_as_the_site_file_has_it(
    tmp_path: Path, records: Records
) -> None:
    rule, by_hand = site(tmp_path, approval={"automatic": "within_limits"}), site(tmp_path)
    Consent(rule, records, "c").authorise(request(study()))
    consent = Consent(by_hand, records, "c")
    with pytest.raises(Undecided):
        consent.authorise(request(study(), 2))
    assert says(listing(by_hand, records), "waits", "decision")
    assert says(review(by_hand, study(), records), "never", "waits", "person")
    Consent(rule, records, "c").authorise(request(study(), 2))
    for by in ("A", "B"):
        assert not consent.has_news()
        decide(records, entry_of(study(), records), approve=True, by=by, people=2)
    assert consent.has_news()
    consent.authorise(request(study(), 3))


def test_half_a_write(tmp_path: Path, records: Records, monkeypatch: pytest.MonkeyPatch) -> None:
    approve(records, study())
    consent = Consent(site(tmp_path), Records(tmp_path / "state", "b"), "c")
    consent.check(study())
    written = records.execute

    def between(statement: str, values: Any = ()) -> Any:
        if statement.startswith("insert into decisions"):
            consent.check(study())
        return written(statement, values)

    monkeypatch.setattr(records, "execute", between)
    decide(records, records.studies.all()[0], approve=False, by="somebody")
    with raises(Refusal, "declined study"):
        consent.check(study())


OPEN = {"selection": {"folds": 2, "candidates": {"local": [{}]}}}


def test_what_a_person_declined_no_rule_approves_in_another_shape(
    records: Records, automatic: Site
) -> None:
    whole = study(user="all", **OPEN)
    part = whole.for_user("a")
    picked = chosen(part, {arm: SelectedSettings({}, 3, 0.1) for arm in part.arms})
    Consent(automatic, records, "c").check(part)  # by the rule, before anybody looked at it
    entry = entry_of(whole, records)
    decide(records, entry, approve=False, by="somebody")
    for shape in (whole, part, next(trials(part, "local"))[0], picked):
        with raises(Refusal, "declined"):
            Consent(automatic, records, "c").check(shape)
    decide(records, entry_of(whole, records), approve=True, by="somebody else")
    for shape in (whole, part, picked):
        Consent(automatic, records, "c").check(shape)


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 7},
        {"name": "another"},
        {"rounds": 5},
        {"arms": {"we": {"algorithm": "weight_erosion"}, "local": {}}},
        {"arms": {"fedavg": {}}},
        {"hospitals": ["a", "b", "c"]},
        {"task": {**STUDY["task"], "features": ["x2", "x1", "x3"]}},  # type: ignore[dict-item]
        {"user": "b"},
    ],
    ids=str,
)
def test_no_rule_approves_a_no(records: Records, changes: dict[str, Any], automatic: Site) -> None:
    entry = entry_of(study(), records)
    decide(records, entry, approve=False, by="somebody")
    again = study(**changes)
    for _ in range(2):
        with raises(Refusal, "no less"):
            Consent(automatic, records, "c").check(again)
    assert any("no less" in line for line in review(automatic, again, records))
    approve(records, again)  # by a person, who may see it otherwise
    Consent(automatic, records, "c").check(again)


def test_a_rule_approves_what_asks_less_than_was_declined_and_no_fold(
    records: Records, automatic: Site
) -> None:
    decide(records, entry_of(study(user="b"), records), approve=False, by="somebody")
    fewer = {**STUDY["task"], "features": ["x1"]}  # type: ignore[dict-item]
    Consent(automatic, records, "c").check(study(user="b", task=fewer))
    whole = study(user="a")
    Consent(automatic, records, "c").check(whole)
    fold = whole.model_copy(update={"fold": Fold(number=0, of=60)})
    with pytest.raises(Undecided):  # `of = n` once held out one patient after another
        Consent(automatic, records, "c").check(fold)


@pytest.mark.parametrize(("epsilon", "is_less"), [(3, True), (100, False)])
def test_a_promise_that_is_hardly_one_is_no_less_than_was_declined(
    records: Records, automatic: Site, epsilon: float, is_less: bool
) -> None:
    plain = {"arms": {"fedavg": {}, "local": {}}, "scaling": "user"}
    privacy = {"epsilon": epsilon, "learning_rate": 0.1}
    decide(records, entry_of(study(**plain), records), approve=False, by="somebody")
    with nullcontext() if is_less else raises(Refusal, "asks no less"):
        Consent(automatic, records, "c").check(study(**plain, privacy=privacy))


def test_the_latest_of_several_decisions_holds(records: Records, consent: Consent) -> None:
    whole = study(user="all")
    one, other = (whole.for_user(user) for user in ("a", "b"))
    approve(records, whole)
    consent.check(one)
    decide(records, entry_of(one, records), approve=False, by="somebody")
    consent.check(other)
    with raises(Refusal, "declined study"):
        consent.check(one)
    decide(records, entry_of(whole, records), approve=True, by="somebody else")
    consent.check(one)


@pytest.mark.parametrize("by", ["the rule", "a person", "a person, after a no"])
def test_no_question_is_answered_twice_because_another_study_leads_to_it_now(
    tmp_path: Path, records: Records, by: str
) -> None:
    here = site(tmp_path, approval={"automatic": "within_limits"})
    whole = study(user="all", selection={"folds": 2, "candidates": {"local": [{}]}})
    part = whole.for_user("a")
    picked = chosen(part, {arm: SelectedSettings({}, 3, 0.1) for arm in part.arms})
    trial = next(trials(part, "local"))[0]
    consent = Consent(here, records, "c")
    consent.check(part)
    for asked_for in (picked, trial):
        consent.authorise(request(asked_for))
    if by == "the rule":
        consent.check(whole)
    else:
        if "no" in by:
            decide(records, entry_of(part, records), approve=False, by="somebody")
        approve(records, whole)
    for asking in (consent, Consent(here, records, "c")):
        for asked_for in (picked, trial):
            with raises(Refusal, "other parameters"):
                asking.authorise(request(asked_for, value=1.0))
            asking.authorise(request(asked_for))  # the same question
        with raises(Refusal, "chosen first"):
            asking.authorise(request(part))


def test_the_list_and_the_review_say_which_decision_holds(tmp_path: Path, records: Records) -> None:
    here, whole = site(tmp_path, approval={"automatic": "within_limits"}), study(user="all")
    part = whole.for_user("a")
    Consent(here, records, "c").check(part)
    approve(records, part)
    decide(records, entry_of(whole, records), approve=False, by="another")
    digest = whole.digest[:12]
    assert f"declined with {digest} by another" in "\n".join(listing(here, records))
    said = "\n".join(review(here, part, records))
    assert says(said, "Declined", digest, "another")
    approve(records, part)  # once more by the same person, and now it is the latest
    assert Consent(here, records, "c").check(part) == part.digest
    assert f"with {digest}" not in "\n".join(listing(here, records))


@pytest.mark.parametrize(
    "changes",
    [
        {"rounds": 4},
        {"seed": 1},
        {"arms": {"weight_erosion": {}, "local": {}, "fedavg": {}}},
        {"fold": {"number": 0, "of": 2}},
        {"user": "b"},
        {"training": {"steps": 2, "batch_size": 4, "learning_rate": 0.2}},
    ],
)
def test_whatever_differs_from_what_was_approved_is_refused(
    records: Records, changes: dict[str, object], consent: Consent
) -> None:
    approve(records, study())
    try:
        other = study(**changes)
    except ValueError:
        other = study().model_copy(update=changes)
    with pytest.raises(Refusal):
        consent.check(other)


def test_a_study_leads_to_its_own_trials_choices_and_users_alone() -> None:
    tried = {"local": [{}], "weight_erosion": [{"size_penalty": 0.5}]}
    base = study(selection={"folds": 2, "candidates": tried})
    for arm in base.arms:
        assert all(leads_to(base, trial) for folds in trials(base, arm) for trial in folds)
    for size in (0.5, 0.7):
        picked = {
            "weight_erosion": SelectedSettings({"size_penalty": size}, 3, 0.1),
            "local": SelectedSettings({}, 2, 0.1),
        }
        assert leads_to(base, chosen(base, picked)) == (size == 0.5)
    assert not leads_to(study(), next(iter(trials(base, "local")))[0])
    whole = study(user="all")
    assert all(leads_to(whole, whole.for_user(user)) for user in ("a", "b"))
    assert not leads_to(whole, study(user="a", rounds=4))


def test_restored_records_allow_no_second_choice_of_settings(
    tmp_path: Path, records: Records, consent: Consent
) -> None:
    tried = {"weight_erosion": [{"size_penalty": 0.1}, {"size_penalty": 0.2}]}
    base = study(rounds=3, selection={"folds": 2, "candidates": tried})
    approve(records, base)
    local = {"local": SelectedSettings({}, 3, 0.1)}
    first, second = [
        chosen(base, {"weight_erosion": SelectedSettings(settings, 3, 0.1), **local})
        for settings in tried["weight_erosion"]
    ]
    key = "c", dataset_of(site(tmp_path))
    lost = Answer(base.digest, "r1", first.digest, "weight_erosion", 1, "train")
    records.answers.recover(key, [lost])  # as from the log
    with raises(Refusal, "chosen first"):
        consent.authorise(request(second))
    consent.authorise(request(first, number=2))


@pytest.mark.parametrize("user", ["a", "all"])
def test_a_run_has_one_choice_of_settings_for_each_user(
    tmp_path: Path, records: Records, user: str, consent: Consent
) -> None:
    sizes = [0.1, 0.2, 0.3]
    tried = {"weight_erosion": [{"size_penalty": size} for size in sizes]}
    base = study(user=user, rounds=3, selection={"folds": 2, "candidates": tried})
    approve(records, base)
    users = ["a", "b"] if user == "all" else ["a"]
    for name in users:
        own = base.for_user(name) if user == "all" else base
        first, *others = [
            chosen(
                own,
                {
                    "weight_erosion": SelectedSettings({"size_penalty": size}, 3, 0.1),
                    "local": SelectedSettings({}, 3, 0.1),
                },
            )
            for size in sizes
        ]
        consent.authorise(request(next(trials(own, "local"))[0]))
        consent.authorise(request(first))
        for other in (*others, own):  # the one whose settings are open is none to train on
            with raises(Refusal, "chosen first"):
                consent.authorise(request(other, value=1.0))
            with raises(Refusal, "chosen first"):
                consent.authorise(evaluation(other))
        resumed = Consent(site(tmp_path), records, "c")
        resumed.authorise(request(first))
        resumed.authorise(request(first, number=2))
        resumed.authorise(evaluation(first))
        resumed.authorise(request(others[0], run="r2"))
    assert records.answers.used(("c", dataset_of(site(tmp_path)))).evaluations == len(users)


def test_no_fold_is_hashed_to_compare_a_whole_study(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large study has 400 of them, of which each took 10 ms for every message."""
    folds = {"folds": 5, "repeats": 4}
    base, other = (study(evaluation={**folds, "bootstrap": each}) for each in (100, 200))
    hashed, dump = list[Study](), Study.model_dump

    def noted(each: Study, **how: Any) -> dict[str, Any]:
        hashed.append(each)
        return dump(each, **how)

    monkeypatch.setattr(Study, "model_dump", noted)
    assert not leads_to(base, other)
    assert len(hashed) == 2


def test_a_run_has_one_model_measured_here(records: Records, consent: Consent) -> None:
    base = study(validation={}, evaluation={"folds": 2})
    approve(records, base)
    models = [base, *fold_studies(base)]
    for first, second in itertools.pairwise([*models, base]):
        run = first.digest
        consent.authorise(evaluation(first, run=run))
        with raises(Refusal, "chosen first"):
            consent.authorise(evaluation(second, run=run))


@pytest.mark.parametrize("key", ["range", "winsorise"])
@pytest.mark.parametrize("names", [("x1",), ("x1", "lab_7"), ("lab_7", "x1", "x1", "lab_7")])
def test_a_column_is_held_against_so_many_ranges_by_whatever_name(
    tmp_path: Path, records: Records, names: tuple[str, ...], key: str
) -> None:
    """The hospital calls the study's x1 lab_7: a study that asks for lab_7 asks for the same."""
    data = {"path": str(tmp_path / "data.csv"), "columns": {"x1": "lab_7"}}
    consent = Consent(site(tmp_path, data=data), records, "c")
    refused = []
    for number in range(8):
        name = names[number % len(names)]
        features = [{"name": name, key: [0, 10 + number]}, "x2"]
        task = {"kind": "tabular", "target": "y", "classes": ["no", "yes"], "features": features}
        asked = study(task=task, scaling="none")
        approve(records, asked)
        try:
            consent.check(asked)
        except Refusal:
            refused.append(number)
    assert refused == [4, 5, 6, 7]


@pytest.mark.parametrize(
    ("column", "changes"),
    [
        ("y", {"task": {"missing": "drop"}}),
        ("x3", {"evaluation": {"split_column": "x3"}}),
        ("x1", {"evaluation": {"subgroups": {"x1": [57.25]}}}),
    ],
)
def test_questions_of_columns(tmp_path: Path, column: str, changes: dict[str, Any]) -> None:
    plain = {"kind": "tabular", "target": "y", "classes": ["no", "yes"], "features": ["x1", "x2"]}
    asked = study(**{**changes, "task": plain | changes.get("task", {})})
    others = contracts_of(study(task=plain), "a")
    assert contracts_of(asked, "a")[column] != others.get(column)


def test_a_step_taken_twice_a_round_is_answered_twice(records: Records, consent: Consent) -> None:
    asked = study(arms={"network_gems": {}}, model={"name": "mlp", "hidden": [4, 4]})
    approve(records, asked)
    other = replace(request(asked), arm="network_gems", step="neurons", exchange=1)
    consent.authorise(other)
    consent.authorise(replace(other, exchange=2, sent=torch.ones(3)))
    with raises(Refusal, "other parameters"):
        consent.authorise(replace(other, exchange=2))
    with raises(Refusal, "neurons", "2 times"):
        consent.authorise(replace(other, exchange=3))
    with raises(Refusal, "most 32"):
        consent.authorise(replace(other, exchange=33))
    consent.authorise(replace(other, step="train"))
    with raises(Refusal, "other parameters"):
        consent.authorise(replace(other, step="train", exchange=2, sent=torch.ones(3)))


@pytest.mark.parametrize(("exchange", "kind"), [(1, RunOver), (2, Refusal)])
def test_a_run_survives_a_round_in_which_others_answered_when_it_was_done_again(
    records: Records, consent: Consent, exchange: int, kind: type[Refusal]
) -> None:
    asked = study(arms={"fedlin": {}})
    approve(records, asked)
    train = replace(request(asked), arm="fedlin", exchange=exchange)
    consent.authorise(train)
    with pytest.raises(Refusal) as problem:
        consent.authorise(replace(train, enclosed={"mean_gradient": torch.ones(3)}))
    assert problem.type is kind
    consent.authorise(replace(train, round=2))


def test_final_figures_are_given_to_one_question_of_a_run(
    records: Records, consent: Consent
) -> None:
    approve(records, study())
    asked = evaluation(study())
    consent.authorise(asked)
    consent.authorise(asked)
    with raises(Refusal, "run once"):
        consent.authorise(replace(asked, parameters={"local": torch.ones(3)}))


def test_budgets_last_and_say_what_they_are(tmp_path: Path, records: Records) -> None:
    limited = site(tmp_path, budget=Budget(runs_per_study=2, rounds=3).model_dump())
    consent = Consent(limited, records, "c")
    approve(records, study())
    consent.authorise(request(study(), 1))
    consent.authorise(request(study(), 1, run="r2"))
    with raises(Refusal, "runs_per_study = 2"):
        consent.authorise(request(study(), 1, run="r3"))
    consent.authorise(request(study(), 2))
    consent = Consent(limited, Records(tmp_path / "state", "b"), "c")
    with raises(Refusal, "budget.rounds = 3"):
        consent.authorise(request(study(), 3))
    consent.authorise(request(study(), 2))  # asked again: it is used up already
    text = "\n".join(listing(limited, records))
    assert "3 of 3" in text


def test_a_round_of_several_messages_counts_once(tmp_path: Path, records: Records) -> None:
    limited = site(tmp_path, budget={"rounds": 2})
    two_arms = study(arms={"fedlin": {}, "again": {"algorithm": "fedlin"}})
    approve(records, two_arms)
    consent, dataset = Consent(limited, records, "c"), dataset_of(limited)
    for arm in two_arms.arms:
        consent.authorise(replace(request(two_arms), arm=arm, step="gradient"))
        consent.authorise(replace(request(two_arms), arm=arm, exchange=2))
    assert records.answers.used(("c", dataset)).rounds == 2
    assert records.answers.used(("c", dataset)).runs == 1
    with raises(Refusal, "2 rounds", "budget.rounds = 2"):
        consent.authorise(replace(request(two_arms, 2), arm="fedlin", step="gradient"))


def test_an_answer_costs_the_same_however_many_runs_there_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted in steps of SQLite's machine."""
    connect = sqlite3.connect
    opened: list[sqlite3.Connection] = []

    def noted(*given: Any, **more: Any) -> sqlite3.Connection:
        opened.append(connect(*given, **more))
        return opened[-1]

    monkeypatch.setattr(sqlite3, "connect", noted)
    records, asked = Records(None, "b"), study(rounds=2)
    budget = {"rounds": 10**4, "runs_per_study": 10**4, "evaluations": 10**4}
    approve(records, asked)
    consent = Consent(site(tmp_path, budget=budget), records, "c")

    def steps_of_a_second_round(run: int) -> int:
        steps = itertools.count()
        consent.authorise(request(asked, 1, run=f"r{run}"))
        opened[-1].set_progress_handler(lambda: next(steps) and 0, 1)
        consent.authorise(request(asked, 2, run=f"r{run}"))
        opened[-1].set_progress_handler(None, 1)
        return next(steps)

    costs = [steps_of_a_second_round(run) for run in range(100)]
    assert costs[99] <= 1.1 * costs[1]
    (key,) = records.answers.pairs()
    assert records.answers.used(key) == Used(studies=1, runs=100, rounds=200, evaluations=0)


def test_runs_are_counted_for_each_user(tmp_path: Path, records: Records) -> None:
    names = ["a", "b", "c", "d", "e", "f"]
    limited = site(tmp_path, budget={"runs_per_study": 2})
    whole = study(user="all", hospitals=names)
    approve(records, whole)
    consent = Consent(limited, records, "c")
    for user in names:
        part = whole.for_user(user)
        for run in ("r1", "r2"):
            consent.check_run(part, f"{run}.{user}")
            consent.authorise(request(part, run=f"{run}.{user}"))
        for run in ("r3", "r1.a" if user != "a" else "r4"):  # by whatever name
            with raises(Refusal, f"2 runs of this study…for {user}"):
                consent.authorise(request(part, run=run))
    further, refused = whole.for_user("a"), "2 runs of this study…budget.runs_per_study = 2"
    with raises(Refusal, refused):
        consent.check_run(further, "r3.a")
    with raises(Refusal, refused):
        consent.authorise(request(further, run="r3.a"))
    text = "\n".join(review(limited, whole, records))
    assert says(text, "2 runs", "6 users", "budget.runs_per_study")


def test_needs_of_many_users_are_cheap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folds = Mock(wraps=folds_of)
    monkeypatch.setattr(limits_module, "folds_of", folds)
    hospitals = ["b", *(f"h{number}" for number in range(1000))]
    asked_for = study(user="all", hospitals=hospitals, evaluation={"folds": 20, "repeats": 20})
    assert needs_of(site(tmp_path), asked_for).runs == len(hospitals)
    assert folds.call_count <= 2  # as the user, and as one that is asked


@pytest.mark.parametrize(
    ("changes", "rounds", "evaluations"),
    [
        ({}, 6, 1),
        ({"user": "a"}, 3, 0),  # the arm `local` does not ask it
        ({"evaluation": {"folds": 2, "repeats": 3}}, 6 + 6 * (6 + 1), 1),
        ({"selection": {"folds": 5}}, 6 + 2 * 5 * 4, 1),
        ({"selection": {"folds": 5, "method": "validation"}}, 6 + 2 * 4, 1),
        ({"user": "all"}, 3 + 6, 1),
    ],
)
def test_a_run_has_as_many_rounds_as_it_needs_and_begins_where_there_are_as_many(
    tmp_path: Path, records: Records, changes: dict[str, object], rounds: int, evaluations: int
) -> None:
    asked_for = study(**{"user": "b", **changes})
    needs = needs_of(site(tmp_path), asked_for)
    assert (needs.rounds, needs.evaluations) == (rounds, evaluations)
    approve(records, asked_for)
    Consent(site(tmp_path, budget={"rounds": rounds}), records, "c").check_run(asked_for, "r1")
    short = site(tmp_path, budget={"rounds": rounds - 1})
    with raises(Refusal, f"{rounds} rounds", f"{rounds - 1} are"):
        Consent(short, records, "c").check_run(asked_for, "r1")
    assert f"and {rounds - 1} are left" in "\n".join(review(short, asked_for, records))


def test_a_lowered_budget_declines_only_what_needs_it(
    tmp_path: Path, records: Records, consent: Consent
) -> None:
    approve(records, study(user="b"))
    for run in ("r1", "r2"):
        consent.authorise(request(study(user="b"), run=run))
        consent.authorise(evaluation(study(user="b"), run=run))
    lowered = Consent(site(tmp_path, budget={"evaluations": 1}), records, "c")
    approve(records, study())
    lowered.check_run(study(), "r3")
    with raises(Refusal, "figures", "0 times"):
        lowered.check_run(study(user="b"), "r3")
    only_users = study(name="alone", arms={"local": {}})
    approve(records, only_users)
    Consent(site(tmp_path, budget={"rounds": 1}), records, "c").check_run(only_users, "r3")


def test_all_rounds_of_a_run_are_those_expected(tmp_path: Path, records: Records) -> None:
    here = site(tmp_path, name="a")
    consent = Consent(here, records, "c")
    sizes = {"weight_erosion": [{"size_penalty": size} for size in (0.1, 0.2)]}
    open_ = study(selection={"folds": 2, "candidates": sizes})
    crossed = study(name="crossed", evaluation={"folds": 2})
    for whole in (open_, crossed):
        approve(records, whole)
        before = records.answers.used(("c", dataset_of(here))).rounds
        parts = fold_studies(whole)
        if whole is open_:
            parts = [trial for arm in whole.arms for folds in trials(whole, arm) for trial in folds]
        for part in parts:
            longest = whole.rounds + (part.selection_fold is not None)
            for arm in part.arms:
                for number in range(1, longest + 1):
                    consent.authorise(replace(request(part, number), arm=arm))
            if part.evaluation_fold is not None:
                consent.authorise(evaluation(part))
        picked = chosen(whole, {arm: SelectedSettings({}, 3, 0.1) for arm in whole.arms})
        for arm in picked.arms:
            for number in range(1, 4):
                consent.authorise(replace(request(picked, number), arm=arm))
        used = records.answers.used(("c", dataset_of(here))).rounds - before
        assert used == needs_of(here, whole).rounds


def test_a_person_keeps_budget_studies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, study_file = written(tmp_path)
    Path(file).write_text(Path(file).read_text().replace("studies = 50", "studies = 1"))
    other = tmp_path / "other.toml"
    other.write_text(Path(study_file).read_text().replace('"small"', '"other"'))
    assert main(["review", file, "--study", study_file, "--approve"]) == 0
    assert main(["review", file, "--study", study_file, "--approve", "--by", "another"]) == 0
    capsys.readouterr()
    assert main(["review", file, "--study", str(other), "--approve"]) != 0
    said = capsys.readouterr()
    assert says(said.out, "1 of 1", "budget.studies")
    assert says(said.err, "1 of 1", "budget.studies")
    assert main(["review", file, "--study", str(other), "--decline"]) == 0
    assert main(["review", file, "--study", study_file, "--decline"]) == 0
    assert main(["review", file, "--study", str(other), "--approve"]) == 0


def test_two_people_approve_by_two_logins_and_one_declines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    login, names = tmp_path / "loginuid", {1001: "anna", 1002: "ben"}
    monkeypatch.setattr("erosion_client.commands.hospital.LOGIN_UID", login)
    monkeypatch.setattr("pwd.getpwuid", lambda uid: Mock(pw_name=names[uid]))
    file, study_file = written(tmp_path)
    toml = Path(file).read_text().replace('automatic = "never"', 'automatic = "never"\npeople = 2')
    Path(file).write_text(toml.replace("people = 1\n", ""))

    def decision(uid: int, *words: str) -> tuple[int, tuple[str, str]]:
        login.write_text(str(uid))
        code = main(["review", file, "--study", study_file, *words])
        here, asked = load_site(Path(file)), load_study(Path(study_file))
        with closing(Records.of(here)) as book:
            entry = entry_of(asked, book)
            is_approved = decision_about(here, asked, book) is not None
            assert is_approved == (entry.state != "pending")
        return code, (entry.state, entry.decided_by)

    assert decision(1001, "--approve") == (0, ("pending", "anna"))
    assert decision(1001, "--approve") == (0, ("pending", "anna"))
    assert decision(1002, "--approve", "--by", "ben") == (3, ("pending", "anna"))
    assert decision(2**32 - 1, "--approve") == (3, ("pending", "anna"))  # no login, a container
    assert decision(1003, "--approve") == (3, ("pending", "anna"))  # no account
    assert decision(1002, "--approve") == (0, ("approved", "anna and ben"))
    assert decision(1001, "--approve") == (0, ("approved", "anna and ben"))
    assert decision(1002, "--decline") == (0, ("declined", "ben"))
    assert decision(1001, "--approve") == (0, ("pending", "anna"))


def test_two_people_are_no_rule(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="people = 2"):
        site(tmp_path, approval={"automatic": "within_limits", "people": 2})


def test_studies_that_wait_are_bounded(records: Records, consent: Consent) -> None:
    for seed in range(105):
        with pytest.raises(Refusal):
            consent.check(study(seed=seed))
    assert len(records.studies.all("pending")) == 100


def written(folder: Path) -> tuple[str, str]:
    """A site file, and a study file."""
    file, study_file = folder / "site.toml", folder / "study.toml"
    file.write_text(tomli_w.dumps(site(folder).model_dump(mode="json", exclude_none=True)))
    study_file.write_text(tomli_w.dumps(study().model_dump(mode="json", exclude_none=True)))
    return str(file), str(study_file)


@pytest.mark.parametrize("decision", ["--approve", "--decline", "--by=me"])
def test_a_study_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], decision: str
) -> None:
    file, _ = written(tmp_path)
    assert main(["review", file, decision]) == 2
    assert "which study" in capsys.readouterr().err


@pytest.mark.parametrize("decision", [[], ["--approve"], ["--decline"]])
def test_a_study_file_that_is_not_of_the_digest_is_not_decided_about(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], decision: list[str]
) -> None:
    file, study_file = written(tmp_path)
    assert main(["review", file, "beef", "--study", study_file, *decision]) == 2
    assert "was decided" in capsys.readouterr().err
    digest = study().digest[:6].upper()
    assert main(["review", file, digest, "--study", study_file, *decision]) == 0


def test_a_changed_record_approves_nothing(tmp_path: Path, records: Records) -> None:
    decide(records, entry_of(study(), records), approve=False, by="somebody")
    (entry,) = records.studies.all()
    records.execute("update decisions set state = 'declinee'")
    with raises(SiteError, "records.sqlite", "not as"):
        Consent(site(tmp_path), records, "c").check(study())
    records.execute("""update studies set content = replace(content, '": 3', '": 2')""")
    for ask in (records.studies.all, lambda: records.studies.get(entry.digest)):
        with raises(SiteError, "records.sqlite", "not as"):
            ask()


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_an_unreadable_approved_study_blocks_no_other(
    tmp_path: Path, records: Records, consent: Consent
) -> None:
    content = '{"name": "of another version"}'
    with closing(Records(tmp_path / "then", "b")) as then:
        approve(then, study(seed=5))
        entry = replace(then.studies.all("approved")[0], content=content, digest=sha256(content))
    records.studies.put(entry)
    with pytest.raises(Undecided):
        consent.check(study())
    approve(records, study())
    assert consent.check(study()) == study().digest
    with pytest.raises(Undecided):  # of which nobody knows any more what it was
        consent.check(study(seed=6))


def test_a_study_is_named_by_how_its_digest_begins(records: Records) -> None:
    approve(records, study())
    assert named(study().digest[:6], records).digest == study().digest
    with raises(StudyError, "No study"):
        named("zz", records)


def test_the_secret_and_the_book_are_private(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    records = Records(folder, "b")
    records.answers.note(("c", "d"), Answer("s", "r", "s", "local", 1, "train"), "h")
    secret = site_secret(folder)
    assert site_secret(folder) == secret
    for name in ("secret.key", FILE_NAME):
        assert (folder / name).stat().st_mode & 0o777 == 0o600
    (folder / "secret.key").chmod(0o644)  # as a restored backup may leave it
    with raises(SiteError, "chmod 600"):
        site_secret(folder)
    (folder / "secret.key").chmod(0o600)
    (folder / "secret.key").write_bytes(b"short")
    with raises(SiteError, "5 bytes"):
        site_secret(folder)


def test_a_resumed_sealed_round_is_the_same_question(records: Records, consent: Consent) -> None:
    approve(records, study())
    for attempt in ("00" * 16, "11" * 16):
        trained = replace(request(study()), values={"attempt": attempt})
        consent.authorise(trained)
        consent.authorise(replace(trained, step=phases.MASKED, values={"scale": attempt}))
    with raises(Refusal, "other parameters"):
        consent.authorise(request(study(), value=1.0))


@pytest.mark.parametrize("command", ["check", "review", "site"])
def test_what_a_study_calls_its_columns_rewrites_no_screen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    names = ["age", "dose\x1b[2J\x1b[31m", "x\u202e", "y\r\nok  limits  kept"]
    task = {"kind": "tabular", "target": "ill", "classes": ["no", "yes"], "features": names}
    (tmp_path / "study.toml").write_text(
        'name = "small"\nuser = "a"\nhospitals = ["a", "b"]\nrounds = 3\narms = ["local"]\n'
        f"training.steps = 2\ntraining.batch_size = 4\nmodel.name = 'logistic'\n"
        f"task = {{kind = 'tabular', target = 'ill', classes = ['no', 'yes'],"
        f" features = {json.dumps(task['features'])}}}\n"
    )
    (tmp_path / "b.csv").write_text("age,dose,ill\n1,2,no\n2,3,yes\n")
    site_file = tmp_path / "site.toml"
    site_file.write_text('name = "b"\ndata.path = "b.csv"\ncoordinator.address = "127.0.0.1:1"\n')
    study_file = ["--study", str(tmp_path / "study.toml")]
    asked = {
        "check": ["check", str(site_file), *study_file],
        "review": ["review", str(site_file), *study_file],
        "site": ["site", "new", *study_file, "--data", str(tmp_path / "b.csv")],
    }
    main(asked[command])
    said = capsys.readouterr()
    shown = "dose\\u001b[2J" if command == "site" else "dose\ufffd[2J"  # as its TOML has it
    assert shown in (said.out + said.err).replace("\n", "")
    assert all(line.isprintable() for line in (said.out + said.err).splitlines())


def test_a_model_over_the_limit_is_not_built(tmp_path: Path, records: Records) -> None:
    large = study(model={"name": "mlp", "hidden": [30_000, 30_000]}, arms={"fedavg": {}})
    with raises(Refusal, "limits.max_parameters = 200000000"):
        Consent(site(tmp_path), records, "c").check(large)
    allowed = site(tmp_path, limits={"max_parameters": 10**9})
    with pytest.raises(Undecided):
        Consent(allowed, records, "c").check(large)
