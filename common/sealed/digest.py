"""SHA-256 over parts, each with its length in front, so that no two lists of parts share a hash.

Every key, signature and commitment of sealed rounds is of such a hash, so all of them hold for this
version of the protocol alone.
"""

import hashlib
import struct

PROTOCOL = "erosion sealed rounds 2"
Part = bytes | memoryview | str | int | float  # a memoryview of bytes: long values, not copied


def digest(*parts: Part) -> bytes:
    """The hash of the parts in their order: 32 bytes."""
    total = hashlib.sha256()
    for part in (PROTOCOL, *parts):
        content = _content(part)
        total.update(struct.pack("<Q", len(content)))
        total.update(content)
    return total.digest()


def _content(part: Part) -> bytes | memoryview:
    match part:
        case bytes() | memoryview():
            return part
        case str():
            return part.encode()
        case int():
            return str(part).encode()
        case float():
            return struct.pack("<d", part)  # every bit counts: 0.1 and its neighbour differ
