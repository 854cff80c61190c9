"""Reads the bodies of hot routes in one pass, where it is sure of them; `bodies` and the documented schema read all others.

A body is decoded by msgspec into its route's `Struct`, which is narrower than the schema. What it gives is what the strict reader
and the schema give for the same bytes; for anything else, and for whatever it only might be wrong about, it gives None. So the
schema stays the one definition, and a refusal is always worded by it.

msgspec by itself would take the last of two equal names, would not mind a number's length, and reads "1.0" among untyped values:
so a body with an escape is not read here (then every quotation mark in it opens or closes a text, and a name that came twice shows
in their number), nor one with 18 digits in a row, nor one with a fraction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Generic, TypeVar

import msgspec

from sentinel.platform.http.bodies import MAX_BYTES, MAX_DEPTH, read_object

T = TypeVar("T", bound=msgspec.Struct)

_TO_ZEROS = bytes.maketrans(b"123456789", b"0" * 9)
_MANY_DIGITS = b"0" * 18


class BodyReader(Generic[T]):
    """The body of one route: as a `shape` (a Struct that forbids unknown fields and omits defaults), or refused.

    `of_object` is the documented way, from a JSON object to the shape; it raises the refusals. `is_sure` tells of a decoded shape
    whether the schema surely takes each of its values as it is.
    """

    def __init__(
        self, shape: type[T], of_object: Callable[[Mapping[str, Any]], T], is_sure: Callable[[T], bool]
    ) -> None:
        self.of_object = of_object
        self._decode = msgspec.json.Decoder(shape, float_hook=_refuse_fraction).decode
        self._encode = msgspec.json.Encoder().encode
        self._is_sure = is_sure

    def read(self, body: bytes) -> T:
        """Raises the refusals of `read_object` and of the schema."""
        quick = self.quick(body)
        return self.of_object(read_object(body)) if quick is None else quick

    def quick(self, body: bytes, depth: int = MAX_DEPTH) -> T | None:
        """The body if it is surely one that the schema takes; `depth`: how many brackets it may have."""
        if not _is_plain(body) or body.count(b"{") + body.count(b"[") > depth:
            return None
        try:
            found = self._decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, _Fraction):
            return None
        # A name that came twice, or with null, has fewer quotation marks when written again.
        return found if self._encode(found).count(b'"') == body.count(b'"') and self._is_sure(found) else None

    def quick_batch(self, body: bytes) -> list[T] | None:
        """The requests of a batch (`{"requests": […]}`) if each is surely one that the schema takes."""
        if not _is_plain(body):
            return None
        try:
            parts = [bytes(part) for part in _batch.decode(body).requests]
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        if body.count(b'"') != 2 + sum(part.count(b'"') for part in parts):
            return None
        found = []
        for part in parts:
            one = self.quick(part, MAX_DEPTH - 2)
            if one is None:
                return None
            found.append(one)
        return found


class _Batch(msgspec.Struct, forbid_unknown_fields=True):
    requests: Annotated[list[msgspec.Raw], msgspec.Meta(min_length=1, max_length=64)]


_batch = msgspec.json.Decoder(_Batch)


class _Fraction(Exception):
    """A number with a fraction or an exponent."""


def _refuse_fraction(text: str) -> Any:
    raise _Fraction(text)


def _is_plain(body: bytes) -> bool:
    return len(body) <= MAX_BYTES and b"\\" not in body and _MANY_DIGITS not in body.translate(_TO_ZEROS)
