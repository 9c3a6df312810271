"""Hooks of the documentation site: its menu, and the API pages made from docstrings.

The menu names the pages in the order in which people read them. A page that is in the folder and
not named here still gets into it, at the end, so that no page is lost; a page that is named here
and not in the folder is left out.
"""

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
MENU = {
    "Using it": [
        "data-sources.md",
        "sources.md",
        "own-models.md",
        "study-file.md",
        "site-file.md",
        "outputs.md",
        "operations.md",
        "monitoring.md",
        "python.md",
        "flower.md",
        "choosing.md",
        "leaderboard.md",
        "algorithms.md",
        "evaluation.md",
        "gems.md",
    ],
    "Trusting it": [
        "threat-model.md",
        "privacy.md",
        "sealed-rounds.md",
        "faults.md",
        "releasing.md",
        "data-protection/index.md",
        "data-protection/data-flow.md",
        "data-protection/impact-assessment.md",
        "data-protection/safeguards.md",
        "data-protection/retention.md",
        "data-protection/agreement.md",
    ],
    "How it works": [
        "architecture.md",
        "link.md",
        "compression.md",
        "rounds.md",
        "extending.md",
        "glossary.md",
    ],
}
REFERENCE = {  # package -> title; of `erosion` only what it exports, of the others every module
    "erosion": "Python interface",
    "erosion_common.algorithms": "Algorithms",
    "erosion_common.aggregation": "Cohorts and updates",
    "erosion_common.learning": "Models and local training",
    "erosion_common.rounds": "Rounds",
    "erosion_common.study": "Study files",
    "erosion_common.tasks": "Tasks",
    "erosion_common.algorithms.gems": "GEMS",
    "erosion_common.sealed": "Sealed rounds",
    "erosion_client.dataset": "Data",
    "erosion_client.dataset.sources": "Sources of patients",
    "erosion_server.output": "Outputs",
}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Lay out the menu."""
    pages = sorted(
        path.relative_to(config.docs_dir) for path in Path(config.docs_dir).rglob("*.md")
    )
    left = [page.as_posix() for page in pages if page.as_posix() != "index.md"]
    menu: list[object] = [{"Start": "index.md"}]
    for title, named in MENU.items():
        found = [page for page in named if page in left]
        left = [page for page in left if page not in found]
        menu.append({title: found})
    if left:
        menu.append({"More": left})
    menu.append({"API": [{title: _page(package)} for package, title in REFERENCE.items()]})
    config.nav = menu
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the API."""
    for package, title in REFERENCE.items():
        modules = [package]
        if package != "erosion":
            folder = _folder(package)
            modules += [
                f"{package}.{path.stem}"
                for path in sorted(folder.glob("*.py"))
                if not path.stem.startswith("_")
            ]
        text = f"# {title}\n\n" + "\n\n".join(f"::: {module}" for module in modules) + "\n"
        files.append(File.generated(config, _page(package), content=text))
    return files


def _folder(package: str) -> Path:
    """Return the folder of a package, which lies in that of its distribution."""
    top, *parts = package.split(".")
    distribution = ROOT / top.removeprefix("erosion_") if top != "erosion" else ROOT
    return distribution.joinpath(top, *parts)


def _page(package: str) -> str:
    return f"reference/{package.rpartition('.')[2]}.md"
