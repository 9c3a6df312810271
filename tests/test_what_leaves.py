"""The threat model's table of what leaves a site names every field of every reply, and no other."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import BaseModel

from erosion.simulation.simulator import simulate, timeless
from erosion_client.training.hospital import Hospital
from erosion_common.algorithms import REGISTRY, steps_of
from erosion_common.protocol import messages, wire
from erosion_common.protocol.messages import (
    EvaluateRequest,
    EvaluateResult,
    StepResult,
    TrainRequest,
    TrainResult,
)
from erosion_common.sealed import phases
from tests.support.registry_cohorts import DIM, PEERS, after_rounds, built, model_for
from tests.support.reply_forms import ATTACHED, FORMS, annotations, models_in
from tests.support.sealed_study import Line, hospitals, run_in, sealed_study
from tests.support.small_study import TWO_NUMBERS, make_site, make_study

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "threat-model.md").read_text(encoding="utf-8")

# What encodes a reply, of which a site's program has no more.
ENCODERS = {"encode_header", "encode_result"}
BY_THE_ARMS_NAME = "personal parameters"  # arrays of an evaluate reply
METHODS: dict[str, dict[str, Any]] = {
    **{name: {"algorithm": name} for name in REGISTRY},
    "public_gems": {"algorithm": "gems", "public_hospital": "c"},
}


def documented() -> dict[str, set[str]]:
    """The names in backticks of each message: `sums.count`, `.total` is `sums.total`."""
    section = PAGE.partition("## What leaves a site, field by field")[2].partition("\n## ")[0]
    found: dict[str, set[str]] = defaultdict(set)
    message = ""
    for line in section.splitlines():
        if not line.startswith("| ") or line.startswith("| message"):
            continue
        said, fields, *_ = (cell.strip() for cell in line.strip("|").split("|"))
        if said:
            named = re.match(r"`([\w.]+)`", said)
            message = named[1] if named else said
        parent = ""
        for name in re.findall(r"`([\w.]+)`", fields):
            full = parent + name if name.startswith(".") else name
            parent = full.rpartition(".")[0]
            found[message].add(full)
    return dict(found)


def fields_of(form: type, place: str = "") -> Iterator[str]:
    """By their path; what stands in lists and by names is of its kind."""
    for name, annotation in annotations(form).items():
        inner = [*models_in(annotation)]
        if not inner:
            yield f"{place}{name}"
        for model in inner:
            yield from fields_of(model, f"{place}{name}.")


@pytest.mark.parametrize("message", FORMS)
def test_every_field_of_a_reply_is_documented(message: str) -> None:
    fields = {field for form in FORMS[message] for field in fields_of(form)}
    named = documented()[message]
    assert fields - named == set()
    assert named - fields == ATTACHED.get(message, set())


def test_every_form_of_a_reply_is_one_of_these() -> None:
    known = {form for forms in FORMS.values() for form in forms}
    inside = {model for form in known for model in nested(form)}
    for module in (messages, phases):
        for name, found in vars(module).items():
            is_form = isinstance(found, type) and issubclass(found, BaseModel)
            if is_form and name.endswith(("Reply", "Said")):
                assert found in known | inside, name


def nested(form: type) -> Iterator[type]:
    for annotation in annotations(form).values():
        for model in models_in(annotation):
            yield model
            yield from nested(model)


def test_a_site_answers_in_no_other_words() -> None:
    """Whatever a site sends went through one of these, or is an error."""
    used: set[str] = set()
    made: set[str] = set()
    for path in sorted((ROOT / "client").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr.startswith("encode_"):
                used.add(node.attr)
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("Message", "RecordDict"):
                made.add(f"{path.stem}: {ast.unparse(node)}")
    assert used == ENCODERS
    assert made == {
        "agent: Message(Error(reply.error.code, reason), reply_to=request)",
        "agent: Message(error, reply_to=message)",
        "agent: Message(said, reply_to=message)",
        "agent: RecordDict()",
        "serve: Message(answer(message.content), reply_to=message)",
        "serve: Message(error, reply_to=message)",
        "serve: Message(refused.encode(), reply_to=message)",
        "serve: Message(wire.encode_header(problem.wanted), reply_to=message)",
        "serve: RecordDict()",
    }


class Noting(Hospital):
    """A hospital that notes what it answers."""

    noted: set[tuple[str, str]]  # message, name
    headers: list[dict[str, Any]]

    def answer(self, request: TrainRequest) -> TrainResult | StepResult:
        found = super().answer(request)
        message = wire.train_type(request.step)
        self.headers.append(found.header.model_dump())
        if isinstance(found, StepResult):
            self.noted |= {(message, name) for name in {*found.tensors, *found.header.values}}
            return found
        record = wire.encode_result(found)
        self.noted |= {(message, name.partition(".")[0]) for name, *_ in wire.arrays_of(record)}
        return found

    def evaluate(self, request: EvaluateRequest) -> EvaluateResult:
        found = super().evaluate(request)
        assert found.personal.keys() <= request.study.arms.keys()
        return found


PATIENTS = {"a": 90, "b": 57, "c": 68}  # no multiples of the smallest cell
TRAINING: dict[str, dict[str, object]] = {
    "steps": {"steps": 3, "batch_size": 8, "learning_rate": 0.05},
    "passes": {"epochs": 2, "batch_size": 8, "learning_rate": 0.05},
}


def table(num: int, seed: int) -> str:
    ages = np.random.default_rng(seed).uniform(20, 80, num).tolist()
    lines = [f"{age:.3f},{number % 7},{'ny'[age > 50]}" for number, age in enumerate(ages)]
    return "\n".join(["age,dose,ill", *lines]) + "\n"


def numbers(value: object) -> Iterator[float]:
    """Every number in what was sent."""
    if isinstance(value, dict | list | tuple):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from numbers(inner)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value


def studies() -> dict[str, tuple[dict[str, Any], list[str]]]:
    """A model and the methods that are arms on it; GEMS ends after a round."""
    found: dict[str, tuple[dict[str, Any], list[str]]] = {}
    for method, arm in METHODS.items():
        network = {"name": "mlp", "hidden": [4, 4]}
        model = network if method == "network_gems" else model_for(arm["algorithm"])
        kind = "gems" if "gems" in arm["algorithm"] else "plain"
        found.setdefault(f"{kind} {model}", (model, []))[1].append(method)
    return found


@pytest.mark.parametrize("training", TRAINING)
@pytest.mark.parametrize(("model", "methods"), studies().values(), ids=studies())
def test_what_hospitals_answer_is_documented_and_tells_no_number_of_patients(
    tmp_path: Path, model: dict[str, Any], methods: list[str], training: str
) -> None:
    study = make_study(
        hospitals=list(PATIENTS),
        rounds=1 if "gems" in methods[0] else 2,
        task={**TWO_NUMBERS, "classes": ["n", "y"]},
        training=TRAINING[training],
        scaling="local",
        arms={method: METHODS[method] for method in methods},
        model=model,
        evaluation={"test_share": 0.4, "bootstrap": 100},
    )
    known: dict[str, Hospital] = {}
    noted, headers = set[tuple[str, str]](), dict[str, list[dict[str, Any]]]()
    for seed, (name, num) in enumerate(PATIENTS.items(), start=1):
        limits = {"min_cell": 10, "min_local_steps": 1}
        file = f"{name}.csv"
        site = make_site(tmp_path, table(num, seed), name=name, file=file, limits=limits)
        known[name] = hospital = Noting(site)
        hospital.noted, hospital.headers = noted, headers.setdefault(name, [])
    simulate(study, known, clock=timeless)
    assert noted
    named = documented()
    assert {(message, name) for message, name in noted if name not in named[message]} == set()
    steps = {f"train.{step}" for arm in study.arms.values() for step in steps_of(arm.algorithm)}
    assert steps - {"train.train"} <= named.keys()
    asked = {header["arm"] for header in headers["b"]}
    assert asked == {name for name, arm in study.arms.items() if not arm.user_only}
    told = {number for header in headers["b"] for number in numbers(header)}
    assert not told & {PATIENTS["b"], 2 * PATIENTS["b"]}


def test_what_hospitals_answer_in_sealed_rounds_is_documented(tmp_path: Path) -> None:
    noted: set[tuple[str, str]] = set()
    known = hospitals(tmp_path, Noting)
    for hospital in known.values():
        assert isinstance(hospital, Noting)
        hospital.noted, hospital.headers = noted, []
    run_in(tmp_path / "runs", Line(sealed_study(), known))
    named = documented()
    tops = {message: {name.partition(".")[0] for name in names} for message, names in named.items()}
    assert {f"train.{step}" for step in phases.STEPS} <= {message for message, _ in noted}
    assert {(message, name) for message, name in noted if name not in tops[message]} == set()
    assert f"`{BY_THE_ARMS_NAME}" not in PAGE
    assert BY_THE_ARMS_NAME in PAGE


def keeps_of_each(state: object) -> bool:
    """Whether a checkpoint has a vector as long as an update for every other hospital."""
    if isinstance(state, Mapping):
        tensors = [found for found in state.values() if isinstance(found, torch.Tensor)]
        return (
            {*PEERS} <= state.keys()
            and all(len(found) == DIM for found in tensors)
            and tensors != []
        )
    parts = [getattr(state, field.name) for field in fields(state)] if is_dataclass(state) else []
    return any(keeps_of_each(part) for part in parts)


def test_the_retention_table_names_the_methods_that_keep_something_of_each_hospital() -> None:
    page = (ROOT / "docs" / "data-protection" / "retention.md").read_text(encoding="utf-8")
    (row,) = (line for line in page.splitlines() if "checkpoints/" in line)
    settings = {"bias_correction": {"bias": "per_hospital"}}
    keeping = set[str]()
    for name in REGISTRY:
        algorithm = built(name, settings.get(name, {}))
        if keeps_of_each(after_rounds(algorithm, 2, *PEERS)):
            keeping.add(name)
    assert keeping == {*re.findall(r"`(\w+)`", row)}


def test_no_figure_of_a_test_part_tells_how_few_are_without_the_event(tmp_path: Path) -> None:
    """Of 49 patients whose number is told, 41 would be as good as the other eight."""
    draws = np.random.default_rng(3)
    tested = [(1, "test")] * 41 + [(0, "test")] * 8
    trained = [(number % 2, "train") for number in range(60)]
    lines = [
        f"{draws.normal():.4f},{draws.normal():.4f},{draws.uniform(1, 90):.3f},{event},{part}"
        for event, part in tested + trained
    ]
    text = "\n".join(["age,dose,months,event,part", *lines]) + "\n"
    task = {
        "kind": "tabular",
        "outcome": "survival",
        "target": {"time": "months", "event": "event"},
        "cut_points": [12, 24, 48],
        "features": ["age", "dose"],
    }
    evaluation = {"bootstrap": 100, "split_column": "part"}
    study = make_study(task=task, evaluation=evaluation, arms=["fedavg", "local"])
    parameters = dict.fromkeys(study.arms, torch.zeros(9))
    user = Hospital(make_site(tmp_path, text, limits={"min_cell": 10}))
    told = user.evaluate(EvaluateRequest(study, parameters, None)).header
    assert told.comparison is not None
    assert told.comparison.num_patients == 49
    assert not {8.0, 41.0} & set(numbers(told.model_dump()))
    assert told.comparison.smallest_class == 5
