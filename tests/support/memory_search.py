"""Looks for secret values in this process's memory without ever holding them itself.

A needle comes with every bit turned over, from a program of its own that read the file. It is
compared word by word as Python's numbers, so that no copy of it comes into being here.
"""

import subprocess
import sys
from pathlib import Path

import numpy as np

REGION = 1 << 24  # bytes read at a time
_READ = """
import sys, safetensors.numpy
update = safetensors.numpy.load_file(sys.argv[1])["update"]
print(bytes(255 - byte for byte in update.tobytes()).hex())
"""


def turned_over(opening: Path) -> list[int]:
    """The words of an opening's update, each with its bits turned over."""
    ran = subprocess.run(
        [sys.executable, "-c", _READ, str(opening)],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    words = bytes.fromhex(ran.stdout.strip())
    return [int.from_bytes(words[i : i + 4], "little") for i in range(0, len(words), 4)]


def occurrences(content: bytes | bytearray, needle: list[int]) -> int:
    """How often the needle's own words follow each other in `content`, at any byte."""
    found = 0
    for start in range(4):
        usable = (len(content) - start) // 4 * 4
        words = np.frombuffer(content, "<u4", usable // 4, start)
        places = np.flatnonzero(words == (needle[0] ^ 0xFFFFFFFF))
        for number, word in enumerate(needle[1:], start=1):
            places = places[places + number < len(words)]
            places = places[words[places + number] == (word ^ 0xFFFFFFFF)]
        found += len(places)
    return found


def in_own_memory(needle: list[int]) -> int:
    """How often the needle is anywhere in this process."""
    found = 0
    overlap = 4 * len(needle)
    with open("/proc/self/mem", "rb", buffering=0) as memory:  # noqa: PTH123 - seeks beyond 2^63
        for line in Path("/proc/self/maps").read_text().splitlines():
            place, rights, *_ = line.split()
            if not rights.startswith("rw") or "[v" in line:
                continue
            start, end = (int(number, 16) for number in place.split("-"))
            for begin in range(start, end, REGION):
                try:
                    memory.seek(begin)
                    content = memory.read(min(REGION + overlap, end - begin))
                except (OSError, ValueError, OverflowError):
                    continue  # given back in the meantime
                found += occurrences(content, needle)
    return found


def in_files(folder: Path, needle: list[int]) -> list[str]:
    """Files below `folder` that hold it."""
    return [
        str(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and occurrences(path.read_bytes(), needle)
    ]
