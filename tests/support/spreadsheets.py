"""Workbooks of one's own making, as Excel writes them."""

import gzip
import zipfile
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from pathlib import Path
from xml.sax.saxutils import escape

HEAD = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>'
MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
PACKAGE = "http://schemas.openxmlformats.org/package/2006"
FIRST_DAY = date(1899, 12, 30)
STYLES = (
    f'<styleSheet xmlns="{MAIN}"><fonts count="1"><font/></fonts><fills count="1"><fill/></fills>'
    '<borders count="1"><border/></borders><cellStyleXfs count="1"><xf/></cellStyleXfs>'
    '<cellXfs count="2"><xf numFmtId="0"/><xf numFmtId="14" applyNumberFormat="1"/></cellXfs>'
    "</styleSheet>"
)


def write_workbook(path: Path, sheets: Mapping[str, Sequence[Sequence[object]]]) -> Path:
    """A text that begins with # is an error, such as #N/A; None is an empty cell."""
    numbers = range(1, len(sheets) + 1)
    parts = {
        "[Content_Types].xml": f'<Types xmlns="{PACKAGE}/content-types">'
        '<Default Extension="rels" ContentType='
        '"application/vnd.openxmlformats-package.relationships+xml"/>'
        '<Default Extension="xml" ContentType="application/xml"/></Types>',
        "_rels/.rels": f'<Relationships xmlns="{PACKAGE}/relationships"><Relationship Id="r"'
        f' Type="{OFFICE}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
        "xl/workbook.xml": f'<workbook xmlns="{MAIN}" xmlns:r="{OFFICE}"><sheets>'
        + "".join(
            f'<sheet name="{escape(name)}" sheetId="{n}" r:id="rId{n}"/>'
            for n, name in zip(numbers, sheets, strict=True)
        )
        + "</sheets></workbook>",
        "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{PACKAGE}/relationships">'
        + "".join(
            f'<Relationship Id="rId{n}" Type="{OFFICE}/worksheet"'
            f' Target="worksheets/sheet{n}.xml"/>'
            for n in numbers
        )
        + f'<Relationship Id="s" Type="{OFFICE}/styles" Target="styles.xml"/></Relationships>',
        "xl/styles.xml": STYLES,
    }
    for n, rows in zip(numbers, sheets.values(), strict=True):
        lines = "".join(
            f'<row r="{r}">{"".join(_cell(r, c, value) for c, value in enumerate(row))}</row>'
            for r, row in enumerate(rows, start=1)
        )
        parts[f"xl/worksheets/sheet{n}.xml"] = (
            f'<worksheet xmlns="{MAIN}"><sheetData>{lines}</sheetData></worksheet>'
        )
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in parts.items():
            archive.writestr(name, HEAD + text)
    return path


def write_ods(path: Path, rows: Sequence[Sequence[object]]) -> Path:
    """One sheet of texts, numbers and dates in the format of LibreOffice."""
    spaces = " ".join(
        f'xmlns:{name}="urn:oasis:names:tc:opendocument:xmlns:{name}:1.0"'
        for name in ("office", "table", "text")
    )
    lines = "".join(
        f"<table:table-row>{''.join(map(_ods_cell, row))}</table:table-row>" for row in rows
    )
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        kind = "application/vnd.oasis.opendocument.spreadsheet"
        archive.writestr("mimetype", kind, zipfile.ZIP_STORED)
        archive.writestr("META-INF/manifest.xml", f"{HEAD}<manifest/>")
        archive.writestr(
            "content.xml",
            f"{HEAD}<office:document-content {spaces}><office:body><office:spreadsheet><table:table"
            f' table:name="A">{lines}</table:table></office:spreadsheet></office:body>'
            "</office:document-content>",
        )
    return path


def _ods_cell(value: object) -> str:
    kind, key = "string", "string-value"
    if isinstance(value, int | float):
        kind, key = "float", "value"
    elif isinstance(value, date):
        kind, key = "date", "date-value"
    return (
        f'<table:table-cell office:value-type="{kind}" office:{key}="{value}">'
        f"<text:p>{escape(str(value))}</text:p></table:table-cell>"
    )


def _cell(row: int, column: int, value: object) -> str:
    place = f"{chr(65 + column)}{row}"
    if value is None:
        return ""
    if isinstance(value, bool):
        return f'<c r="{place}" t="b"><v>{int(value)}</v></c>'
    if isinstance(value, int | float):
        return f'<c r="{place}"><v>{value!r}</v></c>'
    if isinstance(value, date):
        day = value.date() if isinstance(value, datetime) else value
        return f'<c r="{place}" s="1"><v>{(day - FIRST_DAY).days}</v></c>'
    text = escape(str(value))
    if text.startswith("#"):
        return f'<c r="{place}" t="e"><v>{text}</v></c>'
    return f'<c r="{place}" t="inlineStr"><is><t>{text}</t></is></c>'


def kept(name: str) -> bytes:
    """A file that no library here writes.

    table.xls: by xlwt 1.3.0. sample.sas7bdat: of pyreadstat's own tests (Apache-2.0).
    """
    return gzip.decompress((Path(__file__).with_name("files") / f"{name}.gz").read_bytes())
