"""Text from elsewhere: made safe to show, marked where letters look alike, and asked for."""

import hashlib
import json
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable


def printable(text: str, *, at_most: int = 300) -> str:
    """Return `text` on one line, without codes that could rewrite a screen, and not endless."""
    clean = " ".join(text.split())
    if not clean.isprintable():
        clean = "".join(c if c.isprintable() else "�" for c in clean)
    return clean if len(clean) <= at_most else clean[: at_most - 1] + "…"


_BASE_LETTERS = str.maketrans("ıłŁøØđĐ", "ilLoOdD")  # which Unicode does not take apart


def without_accents(text: str) -> str:
    """Return the text with plain letters: "Größe" is Große, "Płeć" Plec."""
    letters = unicodedata.normalize("NFKD", text.translate(_BASE_LETTERS))
    bare = "".join(c for c in letters if not unicodedata.combining(c))
    return unicodedata.normalize("NFC", bare)


def shown(text: str) -> str:
    """Return `text` with its lines, without what could rewrite a screen or turn a line around."""
    return "\n".join(
        "".join(c if c.isprintable() else "\ufffd" for c in line) for line in text.split("\n")
    )


def most_said(reasons: Iterable[str]) -> str:
    """Return the most frequent reason, as the end of a sentence; "" where nobody gave any."""
    ordered = Counter(sorted(reasons)).most_common(1)
    return "".join(f"; what most hospitals say: {reason.rstrip('.')}" for reason, _ in ordered)


# Cyrillic, Greek, Armenian, Latin and Cherokee letters by the ASCII ones that they look like.
_LOOKS = {
    "a": "аɑα", "b": "ЬьᏏɓ", "c": "сϲᴄⲥ", "d": "ԁɗժ", "e": "еҽє℮", "f": "ƒſ", "g": "ɡց", "h": "һհᏂ",
    "i": "іıɩιӏ", "j": "јʝϳ", "k": "κкᴋ", "l": "ӏ|ǀןІΙ", "m": "мᴍ", "n": "ոռηп", "o": "оοօσᴏ",
    "p": "рρϼ", "q": "ԛգ", "r": "гᴦ", "s": "ѕꜱ", "t": "τтᴛ", "u": "υսцʋ", "v": "νѵᴠ", "w": "ԝшѡա",
    "x": "хχ×", "y": "уγүỿ", "z": "ᴢʐ", "A": "АΑᎪ", "B": "ВΒᏴ", "C": "СϹᏟ", "E": "ЕΕᎬ", "H": "НΗᎻ",
    "I": "ІΙӀ", "J": "ЈᎫ", "K": "КΚᏦ", "M": "МΜᎷ", "N": "Ν", "O": "ОΟՕ", "P": "РΡᏢ", "S": "ЅՏᏚ",
    "T": "ТΤᎢ", "X": "ХΧ", "Y": "ҮΥ", "Z": "ΖᏃ", "-": "‐‑–—−", ".": "․", "_": "ˍ",
}  # fmt: skip
_TABLE = {ord(letter): plain for plain, letters in _LOOKS.items() for letter in letters}
_ALIKE = (("rn", "m"), ("vv", "w"), ("cl", "d"), ("0", "o"), ("1", "l"), ("i", "l"), ("5", "s"))
_OWN_LETTERS = frozenset("ßæøœłđðþÆØŒŁĐÐÞµ°²³")  # of Europe's languages and of units


def skeleton(text: str) -> str:
    """Return what all texts that look like this one share, ignoring case and accents."""
    letters = unicodedata.normalize("NFKD", text.translate(_TABLE)).translate(_TABLE).casefold()
    plain = "".join(c for c in letters if c.isprintable() and not unicodedata.combining(c))
    for pair, like in _ALIKE:
        plain = plain.replace(pair, like)
    return plain


def marked(text: str) -> str:
    """Return the text, with the codes of letters that may pass for others or are not seen."""
    if all(map(_is_plain, text)) and text == " ".join(text.split()):
        return text
    seen = json.dumps(printable(text, at_most=len(text)), ensure_ascii=False)
    return f"{seen} (by its letters' codes {json.dumps(text)})"


def looking_alike(texts: Iterable[str]) -> list[tuple[str, ...]]:
    """Return the different texts that look the same, group by group."""
    groups: dict[str, set[str]] = defaultdict(set)
    for text in texts:
        groups[skeleton(text)].add(text)
    return [tuple(sorted(group)) for _, group in sorted(groups.items()) if len(group) > 1]


def _is_plain(letter: str) -> bool:
    if letter.isascii():
        return letter.isprintable()
    apart = unicodedata.normalize("NFD", letter)
    has_marks = len(apart) > 1 and all(map(unicodedata.combining, apart[1:]))
    return letter in _OWN_LETTERS or (apart[0].isascii() and has_marks)


def harmless(cell: object) -> str:
    """Return a cell that no spreadsheet takes for a formula: such text gets a leading '."""
    text = str(cell)
    if not text.startswith(("=", "+", "-", "@", "\t", "\r")):
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text


def as_given(text: str) -> str:
    """Return the text that `harmless` made this of."""
    return text[1:] if text.startswith("'") and harmless(text[1:]) == text else text


def answer_to(question: str) -> str:
    """Ask, and return the answer without spaces around it; empty at the end of input (Ctrl-D)."""
    try:
        return input(question).strip()
    except EOFError:
        print()
        return ""


def open_questions(content: bytes) -> dict[int, str]:
    """Return a draft's open questions: line number -> the text behind `# ?`."""
    lines = enumerate(content.decode("utf-8-sig", errors="replace").splitlines(), 1)
    return {
        number: line.strip().removeprefix("# ?").strip()
        for number, line in lines
        if line.lstrip().startswith("# ?")
    }


def some(names: Iterable[str], most: int = 5, mark: str = ", ") -> str:
    """Return the first few of several names, for a message."""
    known = [*names]
    return mark.join(known[:most]) + (f"{mark}..." if len(known) > most else "")


def significant(value: float, digits: int = 3) -> str:
    """Return a figure with `digits` digits that count; no large one has an exponent: 1220."""
    return f"{float(f'{value:.{digits}g}'):.15g}"


def file_name_of(name: str) -> str:
    """Return a unique file or folder name of plain characters for any text."""
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:80].strip(".-")
    return f"{readable}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
