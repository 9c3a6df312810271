"""The documentation's examples run, and its links within the repository lead somewhere."""

import re
from pathlib import Path

import pytest

from erosion.client.site_file import load_site
from erosion.common.study.study import load_study

ROOT = Path(__file__).resolve().parents[1]
EXTENDING = (ROOT / "docs" / "extending.md").read_text()
SECTIONS = [
    section.split("\n", 1) for section in re.split(r"^## ", EXTENDING, flags=re.MULTILINE)[1:]
]
PAGES = [ROOT / name for name in ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")]


def python_of(text: str) -> str:
    return "\n".join(re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL))


@pytest.mark.parametrize(("title", "text"), SECTIONS, ids=[title for title, _ in SECTIONS])
def test_an_example_of_the_extending_page_runs(title: str, text: str) -> None:
    code = python_of(text)
    assert code, "every section has an example"
    exec(compile(code, f"docs/extending.md: {title}", "exec"), {"__name__": "example"})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text()
    links = re.findall(r"\]\(([^)#:]+)\)", text)
    # A path in code, unless it holds a NAME to be filled in or belongs to a site or a run.
    paths = [
        path
        for path in re.findall(
            r"`((?:common|client|server|erosion|experiments|tests|docs)/[^ `*]+)`", text
        )
        if "NAME" not in path
    ]
    assert [path for path in (*links, *paths) if not (ROOT / path).exists()] == []


def toml_of(page: str) -> list[str]:
    text = (ROOT / "docs" / page).read_text()
    return re.findall(r"```toml\n(.*?)```", text, flags=re.DOTALL)


@pytest.mark.parametrize("number", range(len(toml_of("sources.md"))))
def test_a_file_of_the_page_about_sources_is_valid_as_written(tmp_path: Path, number: int) -> None:
    path = tmp_path / "file.toml"
    path.write_text(toml_of("sources.md")[number])
    if "[coordinator]" in path.read_text():
        site = load_site(path)
        assert site.data.check()
    else:
        study = load_study(path)
        assert study.comparison == ("weight_erosion", "local")
