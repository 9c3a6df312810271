"""Letters that look like others: what is written so is marked where people decide by it.

A skeleton stands for all texts that look alike, as in Unicode's technical standard 39, with the
part of its table that letters of words use.
"""

import json
import unicodedata
from collections import defaultdict
from collections.abc import Iterable

from erosion.common.support.plain_text import printable

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
    """What all texts share that look like this one, whatever their case and accents."""
    letters = unicodedata.normalize("NFKD", text.translate(_TABLE)).translate(_TABLE).casefold()
    plain = "".join(c for c in letters if c.isprintable() and not unicodedata.combining(c))
    for pair, like in _ALIKE:
        plain = plain.replace(pair, like)
    return plain


def marked(text: str) -> str:
    """The text; where letters in it may pass for others or are not seen, also by their codes."""
    if all(map(_is_plain, text)) and text == " ".join(text.split()):
        return text
    seen = json.dumps(printable(text, at_most=len(text)), ensure_ascii=False)
    return f"{seen} (by its letters' codes {json.dumps(text)})"


def looking_alike(texts: Iterable[str]) -> list[tuple[str, ...]]:
    """The different texts that look the same, group by group."""
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
