"""Where a file that should be UTF-8 is not."""

from __future__ import annotations

import codecs


def faulty_line(data: bytes, error: UnicodeDecodeError) -> int | None:
    """The line at which decoding ended; None where all of it is UTF-16, in which no line is better than another."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return None
    return data.count(b"\n", 0, error.start) + 1
