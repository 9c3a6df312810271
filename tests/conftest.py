"""Settings shared by all tests."""

import gc
import itertools
import os
import signal
import time
from pathlib import Path

import pytest
from hypothesis import settings

# Property tests draw the same examples on every machine, so that a failure in CI repeats at home.
settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=20)
settings.register_profile("search", deadline=None, max_examples=2000, print_blob=True)  # make fuzz
settings.load_profile("repeatable")

# A script's background job ignores Ctrl-C, and so would every program that is started from here,
# also where a test is about Ctrl-C. A program is started with the default where we have a handler.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What collecting imports stays, so it is not looked through for garbage: not while it is imported,
# which would take a third of that time, and in no test.
gc.disable()

_homes = itertools.count()

# Tests between real processes, in browsers, and computations: most of the time.
LONG = (
    *("tests/e2e/", "tests/experiments/", "tests/flower/", "tests/erosion/"),
    *("tests/client/sealed/", "tests/test_extending_page.py", "tests/test_distributions.py"),
    *("tests/test_first_study.py", "tests/client/test_finish.py", "tests/client/test_leaks.py"),
    *("tests/client/test_cells.py", "tests/client/test_private_rounds.py"),
    *("tests/client/test_local_trainings.py", "tests/client/test_external.py"),
    *("tests/client/test_reconstruction.py", "tests/common/gems/test_methods.py"),
    *("tests/server/test_resume.py", "tests/server/test_study_queue.py"),
    *("tests/server/test_link.py", "tests/server/test_data_check.py"),
    *("tests/server/test_pages_in_a_browser.py", "tests/server/test_calculator.py"),
    *("tests/server/test_monitoring.py", "tests/server/test_watch.py"),
    *("tests/server/test_roles.py", "tests/server/test_end_notices.py"),
    "tests/server/test_export_onnx.py",
)

# What `make quick` leaves out as well: of tests in one process those that take most for each.
NOT_QUICK = (
    *(f"tests/test_{of}.py" for of in (
        "bundle", "deploy", "figures_in_texts", "lock", "patterns", "release", "what_leaves",
    )),
    *(f"tests/client/test_{of}.py" for of in (
        "bad_sources", "beyond_the_protocol", "data", "drafts", "file_formats", "hospital",
        "installed_model", "isolated_values", "kept_patients", "kept_state", "measured_patients",
        "one_answer", "one_number_for_a_patient", "performance", "predict", "preparation",
        "same_patient", "scaffold", "scans", "smallest_class", "sql", "trained_sets",
        "words_of_errors",
    )),
    *(f"tests/common/test_{of}.py" for of in (
        "cohort", "envelope", "models", "newton", "robust_rules", "split_models",
    )),
    *("tests/common/sealed/test_distance.py", "tests/common/gems/test_balls.py"),
    *(f"tests/server/test_{of}.py" for of in (
        "description", "enrolment", "formats", "outputs", "report", "run_every_user",
    )),
    "tests/server/sealed/test_audit_run.py",
)  # fmt: skip


@pytest.fixture(autouse=True)
def own_home_for_accounts(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No test's hospitals find the budgets of another test, or of this account's own sites."""
    home = tmp_path_factory.getbasetemp() / f"home-{next(_homes)}"  # made where a site needs it
    monkeypatch.setenv("XDG_STATE_HOME", str(home))


@pytest.fixture
def few_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few strengths and trees that local references choose among."""
    from erosion_client.evaluation import references

    monkeypatch.setattr(references, "MOST_TREES", 30)
    monkeypatch.setattr(references, "STRENGTHS", references.STRENGTHS[::4])


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--long-until",
        type=float,
        default=float("inf"),
        metavar="TIME",
        help="no long test starts after this time, in seconds since 1970",
    )
    parser.addoption("--quick", action="store_true", help="the tests of `make quick` alone")


def pytest_collection() -> None:
    """Load the methods and tasks of installed packages, which contract tests check, too.

    Imported here, as pytest-xdist's own process collects nothing and is not asked.
    """
    from erosion_common.algorithms import load_method
    from erosion_common.settings.packages import installed_names
    from erosion_common.tasks import load_task

    for name in installed_names("method"):
        load_method(name, None)
    for name in installed_names("task"):
        load_task(name, None)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import what `make quick` leaves out."""
    path = str(collection_path.relative_to(config.rootpath)) + "/" * collection_path.is_dir()
    return True if config.getoption("--quick") and path in (*LONG, *NOT_QUICK) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every process begins with a share of its own, and ends that with long tests, if any."""
    shares = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    short = [item for item in items if not item.nodeid.startswith(LONG)]
    long = [item for item in items if item.nodeid.startswith(LONG)]
    items[:] = [
        item
        for share in range(shares)
        for kind in (short, long)
        for item in kind[len(kind) * share // shares : len(kind) * (share + 1) // shares]
    ]


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.nodeid.startswith(LONG) and time.time() > item.config.getoption("--long-until"):
        pytest.skip("this machine is slow, and there was no time left for the long tests")


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """Look for garbage once at the end, and not as often as pytest and Python would."""
    gc.collect()
    gc.freeze()
