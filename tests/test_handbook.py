"""The handbook and the data-protection papers name only what there is, and are valid as written."""

import re
import shlex
from pathlib import Path

import pytest

from erosion_client.site_file import Site
from erosion_common.program.command_line import parser
from erosion_common.study.study import Study
from tests.support.data_flow import page
from tests.support.reply_forms import models_in

ROOT = Path(__file__).resolve().parents[1]
PAPERS = sorted((ROOT / "docs" / "data-protection").glob("*.md"))
PAGES = [ROOT / "docs" / "operations.md", *PAPERS]
TEXTS = {page.name: page.read_text() for page in PAGES}
INLINE = sorted({code for text in TEXTS.values() for code in re.findall(r"`([^`\n]+)`", text)})
COMMANDS = [
    line.split("#")[0].strip()
    for block in re.findall(r"```sh\n(.*?)```", TEXTS["operations.md"], flags=re.DOTALL)
    for line in block.splitlines()
]
SYSTEM = {"systemctl", "systemd-analyze", "umask", "tar", "journalctl", "kubectl", "helm"}
SOURCE = "".join(
    path.read_text()
    for folder in ("client", "common", "server")
    for path in (ROOT / folder).rglob("*.py")
)


def by_product(command: str) -> str | None:
    """What follows `erosion`, on its own or in a container."""
    found = re.match(r"(?:kubectl exec .*-- )?erosion (.*)", command)
    return found[1] if found else None


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_of_the_handbook_is_understood(command: str) -> None:
    if (words := by_product(command)) is not None:
        assert callable(parser().parse_args(shlex.split(words)).handler)
    else:
        assert shlex.split(command)[0] in SYSTEM


@pytest.mark.parametrize("command", [code for code in INLINE if by_product(code)])
def test_every_command_in_a_text_and_its_options_exist(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = shlex.split(by_product(command) or "")
    if words == ["--version"]:
        return
    names = [word for word in words[:2] if word.isalpha() and word.islower()]
    with pytest.raises(SystemExit) as ended:
        parser().parse_args([*names, "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert [word for word in words if word.startswith("--") and word not in shown] == []


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


@pytest.mark.parametrize("name", TEXTS)
def test_every_file_that_is_named_exists(name: str) -> None:
    text, (folder,) = TEXTS[name], {page.parent for page in PAGES if page.name == name}
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)
    assert [link for link in links if not (folder / link).exists()] == []
    ours = re.findall(r"`((?:docker|deploy|experiments|tests|docs)/[^`* ]+)`", text)
    assert [path for path in ours if not (ROOT / path).exists()] == []
    suffix = r"(?:sqlite|key|jsonl|csv|json|pem|crt)"
    made = re.findall(rf"`(?!experiments/)(?:[\w/]+/)?([a-z_]+\.{suffix})`", text)
    assert [file for file in made if file not in SOURCE] == []


def test_a_paper_says_that_it_is_a_template() -> None:
    assert len(PAPERS) == 6
    for paper in PAPERS:
        assert re.search(r"^> .*[Tt]emplate", paper.read_text(), flags=re.MULTILINE), paper.name


def test_the_data_flow_is_what_the_program_can_send() -> None:
    assert TEXTS["data-flow.md"] == page()
