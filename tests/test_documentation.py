"""What the texts name is there, their commands and files are valid, and their claims have tests."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from erosion_client.site_file import Site, load_site
from erosion_common.algorithms import catalogue
from erosion_common.learning.training import Training
from erosion_common.program.command_line import parser
from erosion_common.study import privacy, sealing
from erosion_common.study.study import Study, load_study
from tests.support.data_flow import page
from tests.support.extending_page import method_with_two_exchanges
from tests.support.patience import PATIENCE
from tests.support.reply_forms import models_in

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAPERS = sorted((DOCS / "data-protection").glob("*.md"))
HANDBOOK = {page.name: page.read_text() for page in (DOCS / "operations.md", *PAPERS)}
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")),
    *sorted(DOCS.rglob("*.md")),
]
INLINE = sorted({code for text in HANDBOOK.values() for code in re.findall(r"`([^`\n]+)`", text)})
README = (ROOT / "README.md").read_text()
SYSTEM = {"systemctl", "systemd-analyze", "umask", "tar", "journalctl", "kubectl", "helm"}
SYSTEM |= {"docker", "eval", ".venv/bin/python"}
SOURCE = "".join(
    path.read_text()
    for folder in ("client", "common", "server")
    for path in (ROOT / folder).rglob("*.py")
)


def commands_of(text: str) -> list[str]:
    return [
        line.split("#")[0].strip()
        for block in re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL)
        for line in block.splitlines()
        if line.strip()
    ]


def by_product(command: str) -> str | None:
    """What follows `erosion`, on its own, of the environment or in a container."""
    found = re.match(r"(?:kubectl exec .*-- |\.venv/bin/)?erosion (.*)", command)
    return found[1] if found else None


def test_every_file_that_a_page_names_exists() -> None:
    for document in PAGES:
        text = document.read_text()
        # The reference's pages are made with the documentation.
        links = re.findall(r"\]\((?!reference/)([^)#:]+)(?:#[^)]*)?\)", text)
        assert [link for link in links if not (document.parent / link).exists()] == [], document
        # A path in code, unless it holds a NAME to be filled in or belongs to a site or a run.
        folders = "docker|deploy|experiments|tests|docs"
        if document.name not in HANDBOOK:
            folders = "common|client|server|erosion|experiments|tests|docs"
        paths = re.findall(rf"`((?:{folders})/[^ `*:]+)", text)
        assert [p for p in paths if "NAME" not in p and not (ROOT / p).exists()] == [], document
        suffix = r"(?:sqlite|key|jsonl|csv|json|pem|crt)"
        made = re.findall(rf"`(?!experiments/)(?:[\w/]+/)?([a-z_]+\.{suffix})`", text)
        if document.name in HANDBOOK:
            assert [file for file in made if file not in SOURCE] == [], document


def test_every_command_is_understood() -> None:
    for command in commands_of(README) + commands_of(HANDBOOK["operations.md"]):
        if (words := by_product(command)) is not None:
            assert callable(parser().parse_args(shlex.split(words)).handler)
        elif command.startswith("make"):
            run = ["make", "--dry-run", *shlex.split(command)[1:]]
            subprocess.run(run, cwd=ROOT, check=True, capture_output=True, timeout=PATIENCE)
        else:
            assert shlex.split(command)[0] in SYSTEM, command


def test_every_command_in_a_text_and_its_options_exist(capsys: pytest.CaptureFixture[str]) -> None:
    known = parser()
    for words in (shlex.split(by_product(code) or "") for code in INLINE):
        if words in ([], ["--version"]):
            continue
        names = [word for word in words[:2] if word.isalpha() and word.islower()]
        with pytest.raises(SystemExit) as ended:
            known.parse_args([*names, "--help"])
        assert ended.value.code == 0, words
        shown = capsys.readouterr().out
        assert [word for word in words if word.startswith("--") and word not in shown] == [], words


def settings() -> dict[str, set[str]]:
    """The keys of every table of the site and study files."""
    found: dict[str, set[str]] = {}
    for form in (Site, Study):
        for name, field in form.model_fields.items():
            for model in models_in(field.annotation):
                found.setdefault(name, set()).update(getattr(model, "model_fields", {}))
    return found


def test_every_setting_that_is_named_exists() -> None:
    known = settings()
    assert {"min_cell", "epsilon"} <= known["limits"]
    named = [re.match(rf"({'|'.join(known)})\.(\w+)\b(?!\.)", code) for code in INLINE]
    files = {"pem", "toml", "tar"}
    pairs = {(name[1], name[2]) for name in named if name and name[2] not in files}
    assert len(pairs) > 20
    assert {pair for pair in pairs if pair[1] not in known[pair[0]]} == set()
    tables = {m[1] for code in INLINE if (m := re.fullmatch(r"\[(\w+)\](?: path)?", code))}
    assert tables - known.keys() - {"boot"} == set()


def test_a_paper_says_that_it_is_a_template() -> None:
    assert len(PAPERS) == 6
    for paper in PAPERS:
        assert re.search(r"^> .*[Tt]emplate", paper.read_text(), flags=re.MULTILINE), paper.name


def test_the_pages_that_are_made_are_current() -> None:
    assert HANDBOOK["data-flow.md"] == page()
    assert (DOCS / "algorithms.md").read_text().endswith(catalogue() + "\n")


def test_the_site_file_of_the_readme_is_valid(tmp_path: Path) -> None:
    (block,) = re.findall(r"```toml\n(# SITE.toml.*?)```", README, flags=re.DOTALL)
    path = tmp_path / "site.toml"
    path.write_text(block)
    assert load_site(path).limits.min_patients == 20


OF_SOURCES = re.findall(r"```toml\n(.*?)```", (DOCS / "sources.md").read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("text", OF_SOURCES, ids=range(len(OF_SOURCES)))
def test_a_file_of_the_page_about_sources_is_valid_as_written(tmp_path: Path, text: str) -> None:
    path = tmp_path / "file.toml"
    path.write_text(text)
    if "[coordinator]" in text:
        assert load_site(path).data.check()
    else:
        study = load_study(path)
        assert study.comparison is not None
        assert study.comparison[0] == "weight_erosion"
        assert study.comparison[1][0] == "local"


@pytest.mark.parametrize("promises", [{}, {"sums_only": True, "private_updates": True}], ids=str)
def test_the_method_with_two_exchanges_has_neither_privacy_nor_sealed_rounds(
    promises: dict[str, bool],
) -> None:
    """Nor has it where its flags say so, as those that it would inherit do."""
    arms = {"median_length": type("Promising", (method_with_two_exchanges(),), promises)()}
    assert "more than noised updates" in (privacy.problem_with_arms(arms) or "")
    problem = sealing.problem_with_arms(arms, Training(steps=1), "classes")
    assert problem == (
        "arms.median_length: it asks for more than updates, which would leave in the clear"
    )


# -- What no text may say --------------------------------------------------------------------------

needs_git = pytest.mark.skipif(
    shutil.which("git") is None or not (ROOT / ".git").exists(),
    reason="needs git and a checkout: an archive does not say which files are the project's",
)


def committed_texts() -> dict[str, str]:
    """The text of every file that git tracks and that is one, by its path."""
    command = ("git", "-C", str(ROOT), "ls-files", "-z")
    names = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\0")
    found = {}
    for path in (ROOT / name for name in names if name):
        content = path.read_bytes() if path.is_file() else b""
        if b"\0" not in content:
            found[str(path.relative_to(ROOT))] = content.decode("utf-8")
    return found


# A path of the machine that a text was written on; and bare, the name is another program's on PyPI.
SOMEBODYS_FOLDER = re.compile(r"(?<![\w.:/-])/(?:work|root|home/\w+)\b")
BY_NAME = re.compile(r"""pip install\b[^\n`]*?[\s"'\\]erosion(?:\[|[\s"'`\\.,]|$)""", re.MULTILINE)


@needs_git
@pytest.mark.parametrize("forbidden", [SOMEBODYS_FOLDER, BY_NAME], ids=["folder", "name"])
def test_no_text_has_a_folder_of_its_machine_or_installs_by_somebody_elses_name(
    forbidden: re.Pattern[str],
) -> None:
    texts = committed_texts()
    assert "experiments/results/splits.json" in texts
    found = {path: forbidden.findall(text) for path, text in texts.items()}
    assert {path: places for path, places in found.items() if places} == {}


# -- The threat model ------------------------------------------------------------------------------

THREATS = (DOCS / "threat-model.md").read_text()
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+(?:\.py)?(?:::\w+)?)`", THREATS)))


def test_a_test_that_the_threat_model_names_exists() -> None:
    for named in NAMED:
        path, _, function = named.partition("::")
        assert (ROOT / path).exists(), named
        if function:
            assert re.search(rf"^def {function}\(", (ROOT / path).read_text(), re.MULTILINE), named


def test_its_figure_is_the_one_that_the_experiment_drew() -> None:
    assert len(NAMED) >= 5
    drawn = ROOT / "experiments" / "results" / "inference" / "found.svg"
    assert (DOCS / "inference.svg").read_bytes() == drawn.read_bytes()
