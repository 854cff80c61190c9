"""Rows of guards as binary parameters of `sentinel.record_decisions`: arrays of row types (`schema/authority/batches.sql`).

What repeats from row to row (terms, limits without whose budget, totals and breakers) stands once in a batch; its binary form is
kept from batch to batch. PostgreSQL's binary form of an array names its element type by a number that differs from database to
database: it is left 0 here and put in by each connection.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import chain

import orjson

from sentinel.authority.guard_rows import GuardRow, GuardTerms
from sentinel.core.decision import ReservationRequest

TYPES = (
    "sentinel.guard_terms", "sentinel.guard_row", "sentinel.limit_terms", "sentinel.limit_leg", "sentinel.shared_breaker",
)  # fmt: skip
"""Element types of the first five parameters; the sixth is an int4."""

_BOOL, _INT8, _INT4, _TEXT, _TEXTS, _UUID = 16, 20, 23, 25, 1009, 2950
_field = struct.Struct("!Ii").pack
_int4_field, _int8_field = struct.Struct("!Iii").pack, struct.Struct("!Iiq").pack
_array, _no_elements = struct.Struct("!iiIii").pack, struct.Struct("!iiI").pack
_int4, _int4_twice, _int4_pair = struct.Struct("!i").pack, struct.Struct("!ii").pack, struct.Struct("!IiiIii").pack
_NO_TEXT, _NO_UUID, _NO_INT4, _NO_INT8, _NO_BOOL = (_field(oid, -1) for oid in (_TEXT, _UUID, _INT4, _INT8, _BOOL))
_TRUE, _FALSE, _UUID_HEAD = _field(_BOOL, 1) + b"\1", _field(_BOOL, 1) + b"\0", _field(_UUID, 16)


def pack_batch(rows: Sequence[GuardRow], milliseconds: int) -> list[bytes | None]:
    """The parameters of `record_decisions` for decided rows; `milliseconds` is how long locks may be waited for."""
    terms: dict[bytes, int] = {}
    limits: dict[bytes, int] = {}
    shared: dict[bytes, int] = {}
    packed: list[bytes] = []
    legs: list[bytes] = []
    breakers: list[list[bytes]] = []
    for seq, row in enumerate(rows):
        group = None
        if row.terms.shared is not None:
            group = shared.setdefault(row.terms.shared, len(shared))
            if len(shared) > len(breakers):
                totals, rates = _shared(row.terms.shared)
                legs += [_leg(None, group, limits.setdefault(cap, len(limits)), *names) for cap, *names in totals]
                breakers.append([_record(_int(group), rate, count=9) for rate in rates])
        packed.append(_row(seq, terms.setdefault(_terms(row.terms, group), len(terms)), row))
        legs += [
            _leg(seq, None, limits.setdefault(_limit(ask), len(limits)), ask.limit_key, ask.subject)
            for ask in row.limits
        ]
    return [
        _numbered(terms, 25), _elements(packed), _numbered(limits, 8), _elements(legs), _elements(list(chain(*breakers))), _int4(milliseconds),
    ]  # fmt: skip


def _row(seq: int, terms: int, row: GuardRow) -> bytes:
    return _record(
        _int4_pair(_INT4, 4, seq, _INT4, 4, terms), _text(row.idempotency_key), _text(row.once_key),
        _UUID_HEAD, row.operation_id.bytes, _UUID_HEAD, row.event_id.bytes, _UUID_HEAD, row.second_event_id.bytes,
        _UUID_HEAD, row.permit_id.bytes, _UUID_HEAD, row.approval_id.bytes, _bigint(row.amount_minor), _int(row.elapsed_ms),
        _uuid(row.start_id), _int(row.act_seconds),
        *_texts(row.resource, row.digest, row.salt, row.facts_commitment, row.basis, row.request, *row.pack_parts), count=22,
    )  # fmt: skip


@lru_cache(maxsize=4096)
def _terms(terms: GuardTerms, group: int | None) -> bytes:
    """All of a `sentinel.guard_terms` but its place, which stands first."""
    texts = b"".join(_int4(len(one.encode())) + one.encode() for one in terms.reasons)
    array = _array(1, 0, _TEXT, len(terms.reasons), 1) if terms.reasons else _no_elements(0, 0, _TEXT)
    return b"".join((
        _uuid(terms.tenant_id), _uuid(terms.principal_id), _uuid(terms.owner_operator_id), _text(terms.agent_id), _text(terms.action),
        _text(terms.risk_class), _text(terms.scenario), _text(terms.policy_id), _text(terms.policy_version), _text(terms.policy_label),
        _text(terms.policy_digest), _text(terms.currency), _text(terms.verdict), _text(terms.reason_code),
        _field(_TEXTS, len(array) + len(texts)) + array + texts,
        _text(terms.required_role), _int(terms.required_people), _int(terms.approval_seconds), _int(terms.permit_seconds),
        _bool(terms.hand_out_is_start), _bool(terms.approvable), _bool(terms.asks_person), _text(terms.bound_agent), _int(group),
    ))  # fmt: skip


@lru_cache(maxsize=4096)
def _shared(common: bytes) -> tuple[list[tuple[bytes, str, str]], list[bytes]]:
    """The totals (limit, limit key, subject) and breakers of who asks, from their JSON."""
    read = orjson.loads(common)
    totals = [
        (_kept_limit(*(ask[name] for name in _LIMIT)), ask["limit_key"], ask["subject"]) for ask in read["totals"]
    ]
    rates = [
        b"".join((
            _text(rate["breaker_key"]), _text(rate["scope"]), _text(rate["target"]), _int(rate["window_seconds"]), _int(rate["bucket_seconds"]),
            _int(rate["most_operations"]), _bigint(rate["most_minor"]), _text(rate["declared"]),
        ))
        for rate in read["breakers"]
    ]  # fmt: skip
    return totals, rates


_LIMIT = ("window", "window_seconds", "bucket_seconds", "zone", "cap_minor", "verdict", "reason_code")


def _limit(ask: ReservationRequest) -> bytes:
    return _kept_limit(
        ask.window, ask.window_seconds, ask.bucket_seconds, ask.zone, ask.cap_minor, ask.verdict, ask.reason_code
    )  # fmt: skip


@lru_cache(maxsize=4096)
def _kept_limit(window: str, seconds: int, bucket: int, zone: str, cap: int, verdict: str, code: str) -> bytes:
    return b"".join(
        (_text(window), _int(seconds), _int(bucket), _text(zone), _bigint(cap), _text(verdict), _text(code))
    )


def _leg(seq: int | None, group: int | None, limit: int, key: str, subject: str) -> bytes:
    return _record(_int(seq), _int(group), _int(limit), *_texts(key, subject), count=5)


def _numbered(values: Mapping[bytes, int], count: int) -> bytes:
    """An array of records of `count` fields whose first is their place."""
    return _elements([_record(_int(place), value, count=count) for value, place in values.items()])


def _elements(values: Sequence[bytes]) -> bytes:
    """An array of one dimension; its element type is left 0."""
    if not values:
        return _no_elements(0, 0, 0)
    return _array(1, 0, 0, len(values), 1) + b"".join(values)


def _record(*fields: bytes, count: int) -> bytes:
    body = b"".join(fields)
    return _int4_twice(len(body) + 4, count) + body


def _text(value: str | None) -> bytes:
    if value is None:
        return _NO_TEXT
    text = value.encode()
    return _field(_TEXT, len(text)) + text


def _texts(*values: str) -> list[bytes]:
    """Fields of texts, in pieces: each one's head and its bytes."""
    pieces: list[bytes] = []
    for value in values:
        text = value.encode()
        pieces += (_field(_TEXT, len(text)), text)
    return pieces


def _uuid(value: uuid.UUID | None) -> bytes:
    return _NO_UUID if value is None else _UUID_HEAD + value.bytes


def _int(value: int | None) -> bytes:
    return _NO_INT4 if value is None else _int4_field(_INT4, 4, value)


def _bigint(value: int | None) -> bytes:
    return _NO_INT8 if value is None else _int8_field(_INT8, 8, value)


def _bool(value: bool | None) -> bytes:
    return _NO_BOOL if value is None else _TRUE if value else _FALSE
