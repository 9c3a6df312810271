"""The two reference pages."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from erosion.client.site_file import Site
from erosion.common.study.study import Study
from erosion.reference.page import Model, described_schema, markdown


@dataclass(frozen=True, slots=True)
class Page:
    """A file's reference."""

    file: str
    model: Model
    title: str
    opening: str

    def markdown(self) -> str:
        """The page."""
        command = f"erosion schema {self.file} --format markdown"
        return markdown(self.model, self.title, self.opening, command)

    def schema(self) -> dict[str, Any]:
        """The JSON schema with a description of every key."""
        return described_schema(self.model)


PAGES: Mapping[str, Page] = MappingProxyType(
    {
        "study": Page(
            "study",
            Study,
            "Every key of the study file",
            "What all hospitals of a study agree on, in [TOML](https://toml.io). `erosion study new"
            " TABLE --target COLUMN` writes a first draft from a table. A key that has a default"
            " may be left out; an unknown key is refused, and the message suggests the one that was"
            " meant.",
        ),
        "site": Page(
            "site",
            Site,
            "Every key of the site file",
            "One hospital's data, its coordinator and its own limits, in [TOML](https://toml.io)."
            " `erosion site new --study STUDY.toml --data TABLE` writes a first draft; see"
            " [a hospital's data](data-sources.md). Paths are relative to the file. A key that has"
            " a default may be left out; an unknown key is refused, and the message suggests the"
            " one that was meant.",
        ),
    }
)
