"""Finds out the encoding of a text, or names those that it may be in: it is never guessed."""

import codecs
import re
import unicodedata
from collections.abc import Sequence
from itertools import pairwise
from typing import NoReturn

from erosion.client.dataset.sources.file_content import CHUNK, CUT_OFF, FileContent
from erosion.common.errors import DataError

ASK = "set encoding under [data] (--encoding where a draft is made)"
MOST_WORDS = 100_000  # that are not ASCII alone, by which encodings are told apart
SHOWN = 6  # encodings of a message

# What letters beyond ASCII a language has, by the encodings that have them.
WESTERN = (
    "äöüß äöåé åæøéö áéíñóúü áâãàçéêíóôõúü àâæçéèêëîïôœùûüÿ àèéìíîòóùú àéëïöü áðéíóúýþæö àçèéíïòóúü"
)
EASTERN = "ąćęłńóśźż áčďéěíňóřšťúůýž áäčďéíĺľňóôŕšťúýž áéíóöőúüű ăâîşţșț čćđšž äöüß"
TURKISH = "âçğıiöşüî"
LATIN = {
    "cp1252": WESTERN,
    "iso8859-15": WESTERN,
    "cp1250": EASTERN,
    "iso8859-2": EASTERN,
    "cp1254": TURKISH,
    "cp1257": "āčēģīķļņšūž ąčęėįšųūž äõöüšž",
    "mac-roman": WESTERN,
    "cp850": WESTERN,
}
OTHER = {
    "cp1251": "CYRILLIC",
    "koi8-r": "CYRILLIC",
    "cp1253": "GREEK",
    "cp1255": "HEBREW",
    "cp1256": "ARABIC",
}
# Each with the narrower set that people write with.
EAST_ASIAN = {
    "cp932": "shift_jis",
    "euc_jp": "euc_jp",
    "gb18030": "gb2312",
    "big5": "big5",
    "cp949": "euc_kr",
}
BEFORE, AFTER = "«“„‘‚¿¡–—−±≥≤×°µμ~", "»”“’‘°²³%‰®™º…–—€£´µμ"
ALONE = "°µμ–—−±×€£§•·…²³½¼≥≤←→′″ñàéèêóíúáöåüäøæœ"


def found_encoding(content: FileContent) -> tuple[str, str]:
    """The encoding as Python calls it, and a note of it, "" for UTF-8.

    Raises DataError where the text may be in several, or in none, or was cut off.
    """
    with content.open() as file:
        begin = file.read(4)
    if begin.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        check_encoding(content, "utf-16")
        return "utf-16", "the text is in UTF-16 (found out; encoding sets it)"
    if _decodes(content, "utf-8"):
        return "utf-8-sig", ""
    words, before_last = _words(content)
    readings = _readings(words)
    if not readings and before_last and _readings(before_last):
        raise DataError(
            f"Data file {content} ends in the middle of a character, it seems, so it {CUT_OFF}"
        )
    if not readings:
        raise DataError(
            f"Data file {content} is not text in one encoding that is known here. Save it as UTF-8,"
            f" or {ASK}."
        )
    if len(set(readings.values())) > 1:
        shown = list(readings)[:SHOWN]
        differing = next(i for i, _ in enumerate(words) if len({readings[e][i] for e in shown}) > 1)
        each = ", ".join(f'"{name}" ({readings[name][differing][:20]})' for name in shown)
        raise DataError(
            f"Data file {content} is not in UTF-8, and may be in any of {each}. Look which one"
            f" reads right, and {ASK}; or save it as UTF-8."
        )
    encoding = next(iter(readings))
    check_encoding(content, encoding)
    called = "Windows-1252" if encoding == "cp1252" else encoding
    return encoding, f"the text is in {called}, not UTF-8 (found out; encoding sets it)"


def check_encoding(content: FileContent, encoding: str) -> None:
    """Raise DataError where a file is not text in an encoding, or was cut off in a character."""
    if not _decodes(content, encoding):
        raise DataError(
            f"Data file {content} is not text in {encoding}. Correct encoding under [data], such as"
            ' "utf-8", "utf-16" or "cp1252" (Windows in western Europe), or leave it out.'
        )


def _decodes(content: FileContent, encoding: str) -> bool:
    """Whether all of it does; raises DataError where its last character alone is not whole."""
    decoder = codecs.getincrementaldecoder(encoding)()
    with content.open() as file:
        try:
            while chunk := file.read(CHUNK):
                if encoding == "utf-8" and b"\0" in chunk:
                    _refuse_nul(content, chunk)
                decoder.decode(chunk)
        except UnicodeError:
            return False
    try:
        decoder.decode(b"", final=True)
    except UnicodeError:
        raise DataError(
            f"Data file {content} ends in the middle of a character, so it {CUT_OFF}"
        ) from None
    return True


def _refuse_nul(content: FileContent, begin: bytes) -> NoReturn:
    even, odd = begin[::2].count(0), begin[1::2].count(0)
    seems = "utf-16-be" if even > odd else "utf-16-le"
    if min(even, odd) * 10 <= max(even, odd) and "\n" in begin.decode(seems, errors="replace"):
        raise DataError(
            f'Data file {content} seems to be text in UTF-16 without its mark ("{seems}"). If so,'
            f" {ASK}; or save it as UTF-8."
        )
    raise DataError(
        f"Data file {content} is not text that can be read (it holds NUL characters)."
        f" Export it as CSV in UTF-8, or {ASK}."
    )


def _words(content: FileContent) -> tuple[list[bytes], list[bytes]]:
    """The different words beyond ASCII, in the file's order; and the same without its last line."""
    words: dict[bytes, None] = {}
    before_last: list[bytes] = []
    with content.open() as file:
        for line in file:
            if not line.endswith(b"\n"):
                before_last = list(words)
            if not line.isascii() and len(words) < MOST_WORDS:
                words.update(dict.fromkeys(_split(line)))
    return list(words), before_last


def _split(line: bytes) -> list[bytes]:
    # What separates words and cells is never a part of a character in the encodings known here.
    return [word for word in re.split(rb"[\s,;\t\"'()/:=+&!?.*#<>%-]+", line) if not word.isascii()]


def _readings(words: Sequence[bytes]) -> dict[str, tuple[str, ...]]:
    """How the words read in every encoding in which they are words."""
    read: dict[str, tuple[str, ...]] = {}
    for encoding in (*LATIN, *OTHER, *EAST_ASIAN):
        try:
            read[encoding] = tuple(word.decode(encoding) for word in words)
        except UnicodeError:
            continue
    fitting = {name: texts for name, texts in read.items() if _are_words(name, texts)}
    spelt = {name: texts for name, texts in fitting.items() if _are_of_a_language(name, texts)}
    return spelt or fitting


def _are_words(encoding: str, texts: Sequence[str]) -> bool:
    if encoding in EAST_ASIAN:
        return _are_east_asian(EAST_ASIAN[encoding], texts)
    script = OTHER.get(encoding, "LATIN")
    return all(_is_word(text, script) for text in texts)


def _is_word(text: str, script: str) -> bool:
    """Letters of one script, with nothing between them but an apostrophe, and in one case."""
    if text in ALONE:
        return True
    core = text.lstrip(BEFORE).rstrip(AFTER)
    letters = re.sub(r"[\d_·’]", "", core)
    if not letters:
        return True
    if re.search(r"\d[^\x00-\x7f]|[^\x00-\x7f]\d", core):
        return False
    if not all(c.isalpha() and unicodedata.name(c, "").startswith(script) for c in letters):
        return False
    if script == "LATIN" and len(letters) > 1 and re.search(r"[A-Za-z]", letters) is None:
        return False  # no word is of accented letters alone
    return not any(
        a.islower() and b.isupper() and not (a + b).isascii() for a, b in pairwise(letters)
    )


def _are_of_a_language(encoding: str, texts: Sequence[str]) -> bool:
    if encoding not in LATIN:
        return True
    letters = {c for c in "".join(texts).lower() if c.isalpha() and not c.isascii()} - set("µμªº")
    return any(letters <= set(language) for language in LATIN[encoding].split())


def _are_east_asian(usual: str, texts: Sequence[str]) -> bool:
    """Each word has its characters together, in the narrow set, and most words have several."""
    several = 0
    for text in texts:
        wide = [c for c in text if not c.isascii()]
        if any(unicodedata.east_asian_width(c) not in "WFA" for c in wide):
            return False
        if re.search(r"[A-Za-z][^\x00-\x7f][A-Za-z]", text):
            return False
        try:
            "".join(wide).encode(usual)
        except UnicodeError:
            return False
        several += sum(unicodedata.east_asian_width(c) == "W" for c in wide) > 1
    return 2 * several >= len(texts)
