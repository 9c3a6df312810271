"""The papers' experiments: hand-computed values, and one small cell of each."""

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from erosion.sources.titanic import BATCH_SIZE, SPLITS, load_passengers, split_indices
from erosion_common.study.study import Study
from experiments import papers
from experiments.cells import FILE_NAME, Cell, CellFile, ExperimentError, Values, read_cells
from experiments.experiment import carry_out, with_constants
from experiments.papers import quadratic, titanic
from experiments.papers.quadratic import expected_losses, mean_plans
from experiments.papers.quadratic import run_means as run_mean

# Planned once: some plan thousands of cells, and many tests ask each.
EXPERIMENTS = {
    name: replace(experiment, plans=cache(experiment.plans))
    for name, experiment in papers.EXPERIMENTS.items()
}
RESULTS = Path(__file__).parents[2] / "experiments" / "results"
DATA = Path(os.environ["EROSION_DATA"]) if "EROSION_DATA" in os.environ else None
needs_titanic = pytest.mark.skipif(
    DATA is None or not (DATA / "titanic").is_dir(),
    reason="needs EROSION_DATA with the folder titanic",
)


READ, PARSED = CellFile.read, dict[bytes, CellFile]()


def read_once(folder: Path) -> CellFile:
    path = folder / FILE_NAME
    text = path.read_bytes() if path.exists() else b""
    if text not in PARSED:
        PARSED[text] = READ(folder)
    found = PARSED[text]
    return replace(found, path=path, bases=dict(found.bases), cells=dict(found.cells))


@pytest.fixture(scope="module", autouse=True)
def the_same_cells_are_parsed_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CellFile, "read", read_once)
        yield
    PARSED.clear()
    kept_cells.cache_clear()


def test_the_steady_states_in_closed_form_by_hand() -> None:
    base = {"a": 1.0, "eta": 0.1, "sigma": 1.0, "collaborators": 10, "zeta": 1.0}
    # eta sigma^2 / (2 (2 - eta a)) = 0.1 / 3.8
    assert quadratic.exact_steady({**base, "rule": "alone"}) == pytest.approx(0.1 / 3.8, rel=1e-4)
    # half of each: (1/4 + 1/40) 0.1 / 3.8 + 1/8
    relaxed = {**base, "rule": "alone", "relaxed": 5.0}  # the variance is 1 + 5 x^2
    assert quadratic.exact_steady(relaxed) == pytest.approx(0.1 / 2.8, rel=1e-4)
    wga = {**base, "rule": "wga", "alpha": 0.5}
    assert quadratic.exact_steady(wga) == pytest.approx(0.275 * 0.1 / 3.8 + 0.125, rel=1e-4)
    # eta = a = beta = alpha = 1: x' = c - (the others' noise), c' = their difference, so that
    # var x = (1 + 1/10) + 1/10, and the loss is half of it
    direct = {**base, "rule": "bc", "eta": 1.0, "alpha": 1.0, "beta": 1.0}
    assert quadratic.exact_steady(direct) == pytest.approx(1.2 / 2, rel=1e-4)
    # noise with 1 + x^2 / 2 at the user and 1 + (1 + x^2) / 2 at the others: v = v / 2 + 1 + 2 / 10
    # (1 + 1 / 2 + v / 2), so that v (1 / 2 - 1 / 10) = 1.3
    relaxed = {**direct, "relaxed": 0.5}
    assert quadratic.exact_steady(relaxed) == pytest.approx(1.3 / 0.4 / 2, rel=1e-4)


@pytest.mark.parametrize("rule", ["wga", "bc"])
def test_bias_correction_without_its_bias_is_gradient_averaging(rule: str) -> None:
    """With a beta next to 0 the bias is never learned, and its noise neither."""
    base = {"a": 2.0, "eta": 0.2, "sigma": 3.0, "collaborators": 4, "zeta": 0.0, "alpha": 0.3}
    noise = 0.7**2 + 0.3**2 / 4
    alone = 0.2 * 9 / (2 * (2 - 0.4))
    found = quadratic.exact_steady({**base, "rule": rule, "beta": 1e-9})
    assert found == pytest.approx(noise * alone, rel=1e-4)


def test_for_small_steps_bias_correction_s_steady_state_is_that_of_the_paper_s_analysis() -> None:
    """BC/alone = 1/(N+1) + N/(N+1) beta/(beta + eta a), but for terms of the order of eta."""
    for count in (1, 10, 100):
        config: Values = {
            **{"a": 1.0, "eta": 1e-4, "sigma": 1.0, "collaborators": count, "zeta": 1.0},
            **{"alpha": count / (count + 1), "beta": 1e-4, "rule": "bc"},
        }
        expected = 1 / (count + 1) + count / (count + 1) / 2
        ratio = quadratic.exact_steady(config) / quadratic.alone_steady(config)
        assert ratio == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(
    "name", [*(f"figure2-{rule}-zeta1" for rule in quadratic.RULES), "relaxed-alone", "relaxed-bc"]
)
def test_a_simulated_quadratic_ends_at_its_closed_form(name: str) -> None:
    constants = quadratic.Constants(rounds=900, trials=400, a=0.5, eta=0.4, sigma=2.0, beta=0.02)
    (config,) = (plan.config for plan in quadratic.plans(constants) if plan.name == name)
    figures = quadratic.run(config, None)
    assert figures["steady"] == pytest.approx(figures["exact"], rel=0.15)
    assert 0 < figures["standard_error"] < 0.1 * figures["steady"]
    assert abs(figures["steady"] - figures["exact"]) < 4 * figures["standard_error"]


def test_without_convexity_bias_correction_keeps_its_gain_and_averaging_has_none() -> None:
    constants = quadratic.Constants(rounds=1500, trials=200)
    plans = {plan.name: plan.config for plan in quadratic.plans(constants)}
    steady = {
        rule: quadratic.run(plans[f"nonconvex-{rule}"], None)["steady"] for rule in quadratic.RULES
    }
    assert steady["bc"] < steady["alone"] / 3 < steady["wga"] / 30


def test_the_tuned_losses_come_to_rest_where_the_recursion_does() -> None:
    """A run that is long enough ends at the exact steady state, whatever its constants."""
    config = {"a": 2.0, "collaborators": 5, "zeta": 3.0, "sigma": 0.7, "start": 4.0}
    settings = {"eta": 0.1, "alpha": 0.6, "beta": 0.05}
    eta, alpha, beta = (np.array([value]) for value in settings.values())
    losses = quadratic._losses({**config, "rounds": 2000}, eta, alpha, beta)
    steady = quadratic.exact_steady({**config, **settings, "rule": "bc"})
    assert losses.item() == pytest.approx(steady, rel=1e-4)


def test_bias_correction_begins_by_following_the_others() -> None:
    """Two rounds by hand: no noise; x: 1 -> 1 - .1 (1 - .5 * 2) -> ..., and c: 0 -> -.2."""
    config = {"a": 1.0, "collaborators": 5, "zeta": 2.0, "sigma": 0.0, "start": 1.0, "rounds": 2}
    eta, alpha, beta = np.array(0.1), np.array(0.5), np.array(0.1)
    losses = [float(loss) for loss in expected_losses(config, eta, alpha, beta)]
    # x after a round: .9 + .1 * .5 * 2 = 1; then .9 + .1 * .5 * (2 + c), with c = -.2: .99
    assert losses == pytest.approx([0.5, 0.99**2 / 2])


def test_a_caller_s_constants_make_cells_of_their_own(tmp_path: Path) -> None:
    mine = with_constants(EXPERIMENTS["quadratic"], ["zeta=3", "rounds = 60", "trials=4"])
    names = {plan.name for plan in mine.plans()}
    assert {"figure2-bc-zeta3", "figure2-bc-zeta6", "figure5-bc-fixed-n10", "tuned-n10"} <= names
    page = carry_out(mine, pattern="figure2-*", folder=tmp_path)
    text = page.read_text()
    flowing = " ".join(text.split())
    assert "Here a = 1, zeta = 3, sigma = 1, N = 10, step size eta = 0.1" in flowing
    assert "60 rounds, 4 trials" in flowing
    rows = [line for line in text.splitlines() if line.startswith("| figure")]
    assert len(rows) == 6
    assert "highest" not in text
    assert all(row.endswith("| - |") for row in rows)  # what another program found is of ours
    with pytest.raises(ExperimentError, match="not planned by quadratic"):
        carry_out(EXPERIMENTS["quadratic"], folder=tmp_path, draw_only=True)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("zeta", "give NAME=NUMBER"),
        ("zeta=many", "give NAME=NUMBER"),
        ("zeta=NaN", "zeta = nan; it must be a finite number"),
        ("zeta=-1", "zeta = -1; it must be 1e-06 or more"),
        ("zeta=1e300", r"zeta = 1e\+300; it must be 1000000(\.0)? or less"),
        ("sigma=1e300", r"sigma = 1e\+300; it must be"),
        ("start=-1e300", r"start = -1e\+300; it must be"),
        ("eta=1e-320", "eta = 1e-320; it must be 1e-06 or more"),
        pytest.param("collaborators=" + 400 * "9", "more digits", id="many digits"),
        ("seed=" + 40 * "9", "it must be less than 9223372036854775808"),
        ("a=0.001", r"eta \* a is 0\.0001, .* 20,000,000 rounds; it must be 0\.002 or more"),
        pytest.param("zeta=" + 100_000 * "[", "give NAME=NUMBER", id="nested deeply"),
        ("eta=1.5", "eta \\* a is 1.5"),
        ("zetta=1", "did you mean zeta"),
        ("rounds=10", "it must be 60 or more"),
        ("trials=2.5", "it must be a whole number"),
    ],
)
def test_a_constant_that_makes_no_sense_is_refused(given: str, says: str) -> None:
    with pytest.raises(ExperimentError, match=says):
        with_constants(EXPERIMENTS["quadratic"], [given])


def test_an_experiment_without_constants_says_so() -> None:
    with pytest.raises(ExperimentError, match="titanic takes no constants"):
        with_constants(EXPERIMENTS["titanic"], ["seed=1"])


def test_the_best_weight_for_a_mean_is_the_formula_s() -> None:
    for plan in mean_plans():
        figures = run_mean({**plan.config, "trials": 50_000}, None)
        assert figures["measured"] == pytest.approx(figures["optimal"], abs=0.03)


def test_the_faulty_sum_by_hand() -> None:
    """Columns of a are added up and go to every row of b; of a bias, its only row's sum."""
    ones, twos = torch.ones(titanic.DIM), 2 * torch.ones(titanic.DIM)
    total = titanic._faulty_sum([ones, twos])
    assert total[:-2].tolist() == [9 + 2] * 18
    assert total[-2:].tolist() == [2 + 2] * 2


@needs_titanic
def test_the_passengers_are_split_as_in_the_paper() -> None:
    passengers = load_passengers(DATA)
    strict = [len(group) for group in split_indices(passengers, "AGE_STRICT", 278)]
    some = [len(group) for group in split_indices(passengers, "AGE_SOME", 278)]
    assert strict == [248, 476, 322, 263]
    assert some == [362, 362, 322, 263]
    assert passengers.inputs.shape == (1309, 9)
    assert bool(torch.isfinite(passengers.inputs).all())


def test_a_single_passenger_is_a_batch_only_where_the_page_says_so() -> None:
    size = 322  # of user 2, in both splits
    said = " ".join((RESULTS / "titanic" / "README.md").read_text().split())
    for split in SPLITS:
        has_one = (1 + size // 2) % BATCH_SIZE[split] == 1
        assert has_one == (f"`{split}` user 2's 162 test passengers" in said)


@needs_titanic
def test_one_cell_of_an_experiment_is_run_and_drawn(tmp_path: Path) -> None:
    for name, pattern in (("titanic", "corrected-age_strict-0"), ("mean-estimation", "delta1")):
        page = carry_out(EXPERIMENTS[name], pattern=pattern, folder=tmp_path / name, data_dir=DATA)
        assert page.read_text().startswith("# ")
        for picture in page.parent.glob("*.svg"):
            assert b"</svg>" in picture.read_bytes()


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_page_is_what_its_cells_say(name: str, tmp_path: Path) -> None:
    kept = RESULTS / name
    if not kept.is_dir():
        pytest.skip(f"no cell of {name} is kept")
    (tmp_path / name).mkdir()
    shutil.copy(kept / FILE_NAME, tmp_path / name)
    page = carry_out(EXPERIMENTS[name], folder=tmp_path / name, draw_only=True)
    for path in page.parent.iterdir():
        if path.is_file():
            assert path.read_bytes() == (kept / path.name).read_bytes(), path.name


@cache
def kept_cells(name: str) -> Mapping[str, Cell]:
    return read_cells(RESULTS / name, EXPERIMENTS[name].plans())


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_cells_that_were_run_are_of_the_configurations_that_are_planned(name: str) -> None:
    assert set(kept_cells(name)) == set(CellFile.read(RESULTS / name).cells)


def test_every_experiment_s_cells_have_names_of_their_own() -> None:
    for experiment in EXPERIMENTS.values():
        names = [plan.name for plan in experiment.plans()]
        assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_page_of_few_cells_leaves_out_what_has_no_figure(name: str) -> None:
    for count in (1, 7):
        text = EXPERIMENTS[name].draw(dict(islice(kept_cells(name).items(), count))).text
        assert text.startswith("# ")
        assert "nan" not in re.findall(r"\w+", text)
        assert not re.search(r"^## [^\n]*\n\n#", text, re.MULTILINE), "a heading with nothing below"


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_cell_is_a_valid_study_with_its_arms(name: str) -> None:
    experiment = EXPERIMENTS[name]
    kinds = {
        (str(plan.config.get("study")), plan.config.get("user")): plan
        for plan in experiment.plans()
    }
    for plan in list(kinds.values())[:7]:
        found = experiment.settings(plan.config)
        if isinstance(found, Study) and "arms" in plan.config:
            assert list(found.arms) == list(plan.config["arms"])
