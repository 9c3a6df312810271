"""The description of a study's hospitals: what is told, what is pointed out, and who declined."""

import io
import json
import math
import random
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict
from rich.console import Console

from erosion_client.disclosure.control import DisclosureControl
from erosion_client.disclosure.summary import number_summary
from erosion_client.training.hospital import Hospital
from erosion_common.errors import Refusal
from erosion_common.protocol import wire
from erosion_common.protocol.flower import ReplyMessage, RequestMessage
from erosion_common.protocol.messages import (
    LARGEST_COUNT,
    LARGEST_FIGURE,
    QUANTILES,
    ColumnSummary,
    SummaryReply,
)
from erosion_common.rounds.misfits import misfits_of
from erosion_common.study.sections import Fold
from erosion_common.study.study import Study
from erosion_server.coordination.description import ask_all, problem_with
from erosion_server.output.description import Descriptions, description_page, show
from tests.support.html_page import Page
from tests.support.patience import PATIENCE
from tests.support.small_study import make_site, make_study


def numbers_in(text: str) -> list[str]:
    return re.findall(r"\d+(?:\.\d+)?(?:e-\d+)?%?", text)


def numbers(columns: dict[str, ColumnSummary]) -> dict[str, list[str]]:
    """The numbers that are said of each hospital that is pointed out."""
    found = misfits_of(columns, dict.fromkeys(columns, 10))
    return {each.hospital: numbers_in(each.text) for each in found}


def column(middle: float, deviation: float, name: str = "glucose") -> ColumnSummary:
    quantiles = tuple(middle + deviation * z for z in (-1.28, -0.67, 0, 0.67, 1.28))
    return ColumnSummary(
        name=name, kind="number", count=60, missing=0, mean=middle, deviation=deviation,
        quantiles=quantiles,
    )  # fmt: skip


def with_ends(low: float, middle: float, high: float, deviation: float) -> ColumnSummary:
    told = column(middle, deviation, "chol")
    return told.model_copy(update={"quantiles": (low, None, middle, None, high)})


def of_0_and_1(count: int, deviation: float, *quantiles: float | None) -> ColumnSummary:
    told = [q for q in quantiles if q is not None]
    return ColumnSummary(
        name="race_white", kind="number", count=count, missing=0, mean=sum(told) / len(told),
        deviation=deviation, quantiles=quantiles,
    )  # fmt: skip


def lognormal(middle: float, deviation: float, *first: float) -> ColumnSummary:
    """Of a skewed column: the deviation is of the logarithms, and the first values are these."""
    quantiles = [middle * math.exp(deviation * z) for z in (-1.28, -0.67, 0, 0.67, 1.28)]
    told = column(middle, middle * deviation, "creatinine")
    return told.model_copy(update={"quantiles": (*first, *quantiles[len(first) :])})


def coded(no: int, yes: int, name: str = "smoker") -> ColumnSummary:
    shares = {"no": no, "yes": yes}
    return ColumnSummary(name=name, kind="category", count=no + yes, missing=0, shares=shares)


def lacking(missing: int) -> ColumnSummary:
    return column(100, 20).model_copy(update={"count": 60 - missing, "missing": missing})


Told = dict[str, ColumnSummary]
# Cholesterol of four real hospitals: 0 for everybody, and for a third.
CLEVELAND, HUNGARY = with_ends(185, 242, 309, 53.8), with_ends(180, 240, 328, 64)
UNMEASURED = ColumnSummary(
    name="chol", kind="number", count=50, missing=0, mean=0, deviation=0, quantiles=(0,) * 5
)
NOBODY = ColumnSummary(name="glucose", kind="number", count=0, missing=60)
SKEWED = {"a": lognormal(1.0, 0.5), "b": lognormal(1.3, 0.7), "c": lognormal(0.8, 0.6)}
CHOL = {"a": column(240, 50), "b": column(230, 50)}
SMOKERS = {"a": coded(90, 10), "b": coded(50, 0), "d": coded(70, 30)}
POINTED_OUT: list[tuple[Told, dict[str, list[str]]]] = [  # and with which numbers first
    (
        {"a": column(99, 16), "b": column(104, 20), "c": column(5.6, 1.0)},
        {"c": ["5.6", "1", "18", "102", "18"]},  # a unit of glucose
    ),
    ({"a": column(119, 42), "b": column(2178, 720), "c": column(122, 40)}, {"b": []}),
    ({"a": column(119, 42), "b": column(6.72, 2.22), "c": column(122, 40)}, {"b": []}),
    (
        {"a": CLEVELAND, "b": HUNGARY, "c": UNMEASURED, "va": with_ends(0, 220, 293, 117)},
        {"c": ["0", "240", "0"], "va": ["0", "180", "0"]},
    ),
    ({"a": CLEVELAND, "b": HUNGARY, "c": with_ends(185, 250, 999, 250)}, {"c": ["999"]}),
    (
        {"a": column(240, 50), "b": column(0, 0), "c": column(0, 0)},
        {"b": ["0", "240", "0"], "c": ["0", "240", "0"]},
    ),
    ({**CHOL, "c": column(230, 1e-14)}, {"c": ["230"]}),
    (
        {"a": column(0.9, 0.2, "race_white"), "b": of_0_and_1(90, 0, None, 0, 0, 0, None)},
        {"b": ["0", "0.9", "0"]},
    ),
    ({**SKEWED, "c": lognormal(1.0, 0.5, 0.04, 0.06)}, {"c": ["0.04"]}),  # part of another unit
    ({**SKEWED, "c": lognormal(1.0, 0.5, 0, 0, 0)}, {"c": ["0"]}),
    ({**SMOKERS, "c": coded(10, 90)}, {"c": ["90%", "10%"]}),  # the other way round
    ({**SMOKERS, "b": coded(70, 30), "c": coded(300, 0)}, {"c": ["70%"]}),
    (
        {"a": lacking(0), "b": column(105, 20), "c": lacking(50), "d": NOBODY},
        {"c": ["83%"], "d": []},
    ),
    ({"a": column(37, 0.5), "b": column(98.6, 0.9)}, {"a": [], "b": []}),  # degrees
    ({"a": column(100, 5), "b": column(150, 5)}, {"a": [], "b": []}),  # a shift
]


@pytest.mark.parametrize(("told", "found"), POINTED_OUT)
def test_a_column_that_does_not_fit_is_pointed_out(told: Told, found: dict[str, list[str]]) -> None:
    said = numbers(told)
    assert {name: each[: len(found.get(name, []))] for name, each in said.items()} == found


MIXED = {
    "a": of_0_and_1(110, 0.354, 0, 1.02, 1.02, 0.972, 0.972),
    "b": of_0_and_1(90, 0.354, None, 0.4, 1.02, 0.972, None),
    "d": ColumnSummary(
        name="race_white", kind="number", count=20, missing=0, mean=0.3, deviation=0.4
    ),
}
ONLY = {value: of_0_and_1(90, 0, None, *[value] * 3, None) for value in (0, 1)}


@pytest.mark.parametrize(
    "told",
    [
        {"a": column(100, 20), "b": column(130, 25)},
        {"a": column(0.1, 1.0), "b": column(-0.3, 1.0)},  # about zero, where a factor says nothing
        {"a": column(0, 0), "b": column(1, 0)},  # constants
        {"a": column(0, 0.3), "b": column(1, 0.2)},  # of a column of 0 and 1, few and most
        {"a": with_ends(0, 0, 1, 0.4), "b": with_ends(0, 0, 1, 0.4), "c": column(1, 0)},
        *({**MIXED, "c": ONLY[value]} for value in (0, 1)),
        *(
            {"a": ONLY[v], "b": ONLY[v], "c": of_0_and_1(30, 0.2, None, None, 1 - v)}
            for v in (0, 1)
        ),
        SKEWED,
        {**SMOKERS, "c": coded(30, 70)},
        {"a": coded(90, 10)},
        {"a": lacking(50), "b": lacking(50), "c": lacking(50), "d": NOBODY},  # most lack it
    ],
)
def test_other_patients_are_not_pointed_out(told: Told) -> None:
    assert numbers(told) == {}


@pytest.mark.parametrize(
    "other",
    [
        with_ends(20, 240, 480, 100),  # 0 is no farther outside than these are apart
        with_ends(0, 0, 1, 0.3),  # most have one value
        with_ends(400, 500, 600, 60),  # the middle has moved as well
    ],
)
def test_an_end_that_other_patients_may_have_is_none(other: ColumnSummary) -> None:
    told = {"a": other, "b": other, "c": with_ends(0, 230, 300, 100)}
    assert not [
        found for found in misfits_of(told, dict.fromkeys(told, 10)) if "tenth" in found.text
    ]


def test_what_is_not_told_is_not_shown_as_none_nor_the_rest_as_all() -> None:
    # Of 40 patients 33 are ill, and the hospital counts no fewer than ten.
    told = coded(0, 30, "ill")
    nobody = ColumnSummary(name="dose", kind="number", count=0, missing=30)
    replies = {
        name: SummaryReply(
            hospital=name,
            software="",
            min_cell=10,
            num_samples=40,
            num_patients=40,
            columns=(told, nobody),
        )
        for name in ("a", "b")
    }
    found = Descriptions(make_study(), replies, {})
    page = Page(description_page(found)).text
    for number in ("30 (21–48)", "(0–9)", "(70–100%)", "(0–30%)"):
        assert number in page
    stream = io.StringIO()
    show(found, Console(file=stream, width=100))
    (row,) = [row.split() for row in stream.getvalue().splitlines() if " dose " in row]
    assert row == ["dose", "a", "few", "(0–9)", "nearly", "all"]


TABLE = "age,sex,ill\n" + "".join(f"{30 + i},{'fm'[i % 2]},{i % 2}\n" for i in range(40))


def summary_of(folder: Path, study: Study, text: str, name: str) -> SummaryReply:
    site = make_site(folder, text, name=name, file=f"{name}.csv", limits={"min_cell": 10})
    return Hospital(site).summarise(study)


def test_a_hospital_tells_nothing_about_fewer_than_a_cell(tmp_path: Path) -> None:
    study = make_study(hospitals=["a", "b"], evaluation={"test_share": 0.5})
    told = summary_of(tmp_path, study, TABLE, "b")
    assert (told.min_cell, told.num_samples) == (10, 40)
    age, sex, ill = told.columns
    assert age.count == 40
    assert all(share % 10 == 0 for share in (*sex.shares.values(), *ill.shares.values()))
    assert set(ill.shares) == {"healthy", "ill"}
    one_woman = TABLE.replace(",f,", ",m,").replace("30,m", "30,f", 1)
    rare = summary_of(tmp_path, study, one_woman, "b")
    assert rare.columns[1].shares["f"] == 0


def _content(answer: SummaryReply | str) -> RecordDict:
    if isinstance(answer, str):
        return RecordDict({"header": ConfigRecord({"json": answer})})
    return wire.encode_header(answer)


class ScriptedLine:
    """Sites that come one after another, and what each answers; it stands in for a Link."""

    enrolled_only = False

    def __init__(self, *answers: tuple[int, SummaryReply | Error | str]) -> None:
        """By node, text as it travels; one that comes again has signed in anew."""
        self.grid, self._answers = self, answers
        self._here: dict[int, int] = {}
        self._replies: dict[str, Message] = {}
        self._num_asked = 0

    def visits(self) -> dict[int, tuple[int, int]]:
        node = self._answers[self._num_asked][0]
        self._here[node] = self._here.get(node, 0) + 1
        return {node: (number, 0) for node, number in self._here.items()}

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        (message,) = messages
        node, answer = self._answers[self._num_asked]
        assert message.metadata.dst_node_id == node
        self._num_asked += 1
        name = str(self._num_asked)
        told = answer if isinstance(answer, Error) else _content(answer)
        asked = RequestMessage(RecordDict(), name, node, wire.SUMMARY, group_id="", ttl=60.0)
        self._replies[name] = ReplyMessage(told, asked)
        return [name]

    def pull_messages(self, names: Iterable[str]) -> list[Message]:
        return [self._replies.pop(name) for name in names]

    def hospital_of(self, _node: int) -> None:
        """Nobody is enrolled."""

    def wait_for_news(self, _seconds: float) -> None:
        """The next one is here."""

    def forget(self, _names: Iterable[str]) -> None:
        """Nothing is on its way."""


def test_quantiles_of_all_patients_are_those_of_the_mixture() -> None:
    drawn = np.random.default_rng(0)
    values = {"a": drawn.normal(50, 10, 3000), "b": drawn.normal(60, 5, 1000)}
    columns = {
        name: column(0, 1, "age").model_copy(
            update={"count": len(each), "quantiles": tuple(np.quantile(each, QUANTILES).tolist())}
        )
        for name, each in values.items()
    }
    nobody = column(0, 1, "age").model_copy(update={"count": 0, "quantiles": (None,) * 5})
    replies = {
        name: SummaryReply(
            hospital=name,
            software="1",
            min_cell=10,
            num_samples=60,
            num_patients=60,
            columns=(each,),
        )
        for name, each in {**columns, "c": nobody}.items()
    }
    found = Descriptions(make_study(hospitals=[*"abc"]), replies, {})
    every = np.quantile(np.concatenate([*values.values()]), QUANTILES)
    assert np.allclose(found.pooled("age"), every, atol=1.1)
    alone = Descriptions(make_study(), {"a": replies["a"]}, {})
    assert alone.pooled("age") == pytest.approx(columns["a"].quantiles)
    assert Descriptions(make_study(), {"b": replies["c"]}, {}).pooled("age") == ()
    assert found.figures["pooled_quantiles"]["age"].keys() == {"0.1", "0.25", "0.5", "0.75", "0.9"}


def number_reply(hospital: str, **figures: Any) -> dict[str, Any]:
    """A description as it travels, before it is checked."""
    told = column(70, 10, "age").model_dump(mode="json")
    return {
        "hospital": hospital, "software": "1", "min_cell": 10, "num_samples": 60,
        "num_patients": 60,
        "columns": [{**told, **figures}],
    }  # fmt: skip


def read(values: Any) -> SummaryReply:
    return wire.decode_header(_content(json.dumps(values)), SummaryReply)


@pytest.mark.parametrize(
    "figures",
    [
        {"count": -5, "missing": 5},
        {"missing": 10**400},
        {"mean": 1.7e308},
        {"deviation": -1.0},
        {"quantiles": [1.0] * 6},
        {"quantiles": [-1.7e308, 0.0, 0.0, 0.0, 1.7e308]},
        {"shares": {"f": -1}},
    ],
)
def test_figures_that_no_patients_have_cost_their_hospital_its_place_and_nobody_else_theirs(
    figures: dict[str, Any],
) -> None:
    study = make_study(hospitals=["a", "b"])
    line: Any = ScriptedLine(
        (1, json.dumps(number_reply("a", **figures))), (2, read(number_reply("b")))
    )
    line.hospital_of = {1: "a", 2: "b"}.get
    found = ask_all(study, line, PATIENCE)
    assert list(found.replies) == ["b"]
    assert f"columns.0.{next(iter(figures))}" in found.declined["a"]
    shown(found)


def shown(found: Descriptions) -> str:
    """As the terminal and the page have it."""
    stream = io.StringIO()
    show(found, Console(file=stream, width=200))
    return stream.getvalue() + description_page(found)


TINY, HUGE = 5e-324, LARGEST_FIGURE  # the smallest number there is


NUMBERS = (None, 0.0, -0.0, TINY, -TINY, 1.0, -70, 1e-100, HUGE, -HUGE)
COUNTED = (0, 1, LARGEST_COUNT)
EXTREMES: dict[str, tuple[Any, ...]] = {
    "name": ("age",),
    "kind": ("number", "category", "outcome"),
    "count": COUNTED,
    "missing": COUNTED,
    "mean": NUMBERS,
    "deviation": tuple(value for value in NUMBERS if value is None or value >= 0),
    "quantiles": (
        [],
        [TINY],
        [None] * 5,
        *([value] * 5 for value in NUMBERS[1:]),
        [-HUGE, -TINY, 0.0, TINY, HUGE],
        [HUGE, TINY, None, -TINY, -HUGE],
        [0, 0, 0, 0, TINY],
    ),
    "shares": ({}, {"": 0}, *({"f": n, "\x1b[2J<b>\u202e": n, "\x00": 1} for n in COUNTED)),
}


def test_whatever_figures_a_hospital_tells_the_table_and_the_page_are_made() -> None:
    assert set(EXTREMES) == set(ColumnSummary.model_fields)
    study = make_study(hospitals=["a", "b", "c"])
    draws = random.Random(0)

    def drawn() -> dict[str, Any]:
        return {key: draws.choice(values) for key, values in EXTREMES.items()}

    strange = [{key: value} for key, values in EXTREMES.items() for value in values]
    for figures in (*strange, *(drawn() for _ in range(20))):
        for others in ({}, figures, drawn()):
            told = {"a": {}, "b": others, "c": figures}
            replies = {name: read(number_reply(name, **changed)) for name, changed in told.items()}
            for name, reply in replies.items():
                assert (problem_with(reply, study, name) is None) == (not told[name].get("shares"))
            assert "nan" not in shown(Descriptions(study, replies, {})), told


def test_a_trial_is_not_described(tmp_path: Path) -> None:
    trial = make_study().model_copy(update={"fold": Fold(number=0, of=2)})
    with pytest.raises(Refusal):
        Hospital(make_site(tmp_path, TABLE)).summarise(trial)


def test_a_summary_survives_the_wire_and_strange_ones_are_named() -> None:
    reply = read(number_reply("a"))
    assert wire.decode_header(wire.encode_header(reply), SummaryReply) == reply
    assert problem_with(reply, make_study(), "a") is None
    assert "'a'" in str(problem_with(reply, make_study(), "b"))
    strange = reply.model_copy(update={"columns": (column(1, 1, "salary"),)})
    assert "salary" in str(problem_with(strange, make_study(), "a"))
    sex = ColumnSummary(name="sex", kind="category", count=60, missing=0, shares={"f": 40, "m": 20})
    ill = sex.model_copy(update={"name": "ill", "kind": "outcome", "shares": {"ill": 60}})
    both = reply.model_copy(update={"columns": (sex, ill)})
    assert problem_with(both, make_study(), "a") is None
    for told in (sex, ill):
        more = {**told.shares, "<b>\x1b": 0}
        odd = reply.model_copy(update={"columns": (told.model_copy(update={"shares": more}),)})
        said = str(problem_with(odd, make_study(), "a"))
        assert f"'<b>\ufffd' of {told.name!r}" in said
    twice = reply.model_copy(update={"columns": reply.columns * 2})
    assert "'age'" in str(problem_with(twice, make_study(), "a"))


def test_missing_values_are_counted_to_a_cell() -> None:
    site = make_site(Path(), None, limits={"min_cell": 10})
    values = np.where(np.arange(60) < 25, np.nan, 5.0)
    told = number_summary(DisclosureControl(site), "x", "number", values, np.arange(60))
    assert (told.count in (30, 40), told.missing in (20, 30)) == (True, True)
