"""Finds the place where a file is not valid UTF-8."""

from __future__ import annotations

import codecs


def faulty_line(data: bytes, error: UnicodeDecodeError) -> int | None:
    """Return the line (from 1) at which decoding failed; None for a UTF-16 file, in which every line is equally wrong."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return None
    return data.count(b"\n", 0, error.start) + 1
