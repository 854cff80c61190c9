"""Rows of guards as binary parameters of `sentinel.record_decisions`: arrays of row types (`schema/authority/batches.sql`).

Values that many rows share (terms, limits without their subject) are sent once per batch, and their binary form is
cached across batches. What all rows together ask of a limit or a breaker is summed up first (`batch_sums.py`).
PostgreSQL's binary form of an array contains the OID of its element type, which differs from database to database: it
is left 0 here, and each connection fills it in.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from itertools import chain

from sentinel.authority.batch_sums import BatchSums, BudgetSum, Common, RateSum
from sentinel.authority.guard_rows import GuardRow, GuardTerms

TYPES = (
    "sentinel.guard_terms", "sentinel.guard_row", "sentinel.limit_terms", "sentinel.budget_sum", "sentinel.rate_sum",
)  # fmt: skip
"""Element types of the first five parameters; the sixth is an int4."""

_BOOL, _BYTEA, _INT8, _INT4, _TEXT, _UUID = 16, 17, 20, 23, 25, 2950
_BOOLS, _INTS, _TEXTS, _INT8S = 1000, 1007, 1009, 1016
_field = struct.Struct("!Ii").pack
_int4_field, _int8_field = struct.Struct("!Iii").pack, struct.Struct("!Iiq").pack
_array, _no_elements = struct.Struct("!iiIii").pack, struct.Struct("!iiI").pack
_int4, _int4_twice, _int4_int8 = struct.Struct("!i").pack, struct.Struct("!ii").pack, struct.Struct("!iq").pack
_ROW_HEAD, _row_ids = struct.Struct("!iiIiiIii"), struct.Struct("!" + "Ii16s" * 5).pack
_LENGTH_BYTES = 4
"""The size of the length with which a record begins; the length does not include itself."""
_NO_TEXT, _NO_UUID, _NO_INT4, _NO_INT8, _NO_BOOL = (_field(oid, -1) for oid in (_TEXT, _UUID, _INT4, _INT8, _BOOL))
_NO_TEXTS, _NO_BYTES = _field(_TEXTS, -1), _field(_BYTEA, -1)
_NONE_OF_TEXTS, _NONE_OF_INTS = (
    _field(oid, 12) + _no_elements(0, 0, element) for oid, element in ((_TEXTS, _TEXT), (_INTS, _INT4))
)
_TRUE, _FALSE, _UUID_HEAD = _field(_BOOL, 1) + b"\1", _field(_BOOL, 1) + b"\0", _field(_UUID, 16)
_HASH_HEAD = _field(_BYTEA, 32)


def pack_batch(rows: Sequence[GuardRow], milliseconds: int) -> list[bytes | None]:
    """Return the binary parameters of `record_decisions` for decided rows; `milliseconds` is how long to wait for locks."""
    terms: dict[bytes, int] = {}
    sums = BatchSums()
    packed: list[bytes] = []
    for seq, row in enumerate(rows):
        mine, places = sums.add(row)
        place = terms.setdefault(_terms(row.terms, mine.group, places, mine.common, _own_keys(row)), len(terms))
        packed.append(_row(seq, place, row.packed or pack_row(row)))
    budget_sums = [_budget_sum(one) for one in sums.budget_sums()]
    return [
        _numbered(terms, 33), _elements(packed), _numbered({_limit(*limit): place for limit, place in sums.limits.items()}, 8),
        _elements(budget_sums), _elements([_rate_sum(one) for one in sums.rate_sums()]), _int4(milliseconds),
    ]  # fmt: skip


def _row(seq: int, terms: int, packed: bytes) -> bytes:
    return _ROW_HEAD.pack(_ROW_HEAD.size - _LENGTH_BYTES + len(packed), 28, _INT4, 4, seq, _INT4, 4, terms) + packed


def pack_row(row: GuardRow) -> bytes:
    """Return the binary form of a `sentinel.guard_row` without its first two fields, its place and that of its terms.

    Those depend on the batch; the rest can be packed before the batch is known.
    """
    ids, limits = row.ids, row.limits
    operation_commitment, amount, ledger_entry_id, refund_id = row.pack_values
    return b"".join((
        _text(row.idempotency_key), _text(row.once_key),
        _row_ids(_UUID, 16, ids[:16], _UUID, 16, ids[16:32], _UUID, 16, ids[32:48], _UUID, 16, ids[64:], _UUID, 16, ids[48:64]),
        _bigint(row.amount_minor), _int(row.elapsed_ms), _uuid(row.start_id), _int(row.act_seconds),
        _text(row.resource), _HASH_HEAD, bytes.fromhex(row.digest[7:]), _HASH_HEAD, bytes.fromhex(row.salt), _text(row.basis),
        _text(row.params), _text(row.request if row.params is None else None),
        _HASH_HEAD, row.facts_commitment, _HASH_HEAD, operation_commitment,
        _text(amount), _text(ledger_entry_id), _text(refund_id),
        _UUID_HEAD, row.terms.tenant_id.bytes, _text_array([ask.limit_key for ask in limits]), _text_array({ask.subject: None for ask in limits}),
        _NO_BYTES if row.trace is None else _field(_BYTEA, len(row.trace)) + row.trace,
    ))  # fmt: skip


def _own_keys(row: GuardRow) -> tuple[str, ...] | None:
    """Return the keys of a row's limits (without totals), without the subject at their end; None if the subjects differ."""
    limits = row.limits
    if not limits:
        return ()
    owner = limits[0].subject
    if any(ask.subject != owner for ask in limits):
        return None
    return tuple([ask.limit_key.removesuffix(owner) for ask in limits])


@lru_cache(maxsize=4096)
def _terms(
    terms: GuardTerms, group: int | None, places: tuple[int, ...], common: Common, own_keys: tuple[str, ...] | None
) -> bytes:  # fmt: skip
    """Return the binary form of a `sentinel.guard_terms` without its first field, its place in the batch.

    `places` are those of its rows' limits, then of their totals.
    """
    keys = _NO_TEXTS if own_keys is None else _text_array([*own_keys, *(key for _, key, _ in common.totals)])
    return b"".join((
        _uuid(terms.tenant_id), _uuid(terms.principal_id), _uuid(terms.owner_operator_id), _text(terms.agent_id), _text(terms.action),
        _text(terms.risk_class), _text(terms.scenario), _text(terms.policy_id), _text(terms.policy_version), _text(terms.policy_label),
        _text(terms.policy_digest), _text(terms.currency), _text(terms.verdict), _text(terms.reason_code),
        _text_array(terms.reasons) if terms.reasons else _NONE_OF_TEXTS,
        _text(terms.required_role), _int(terms.required_people), _int(terms.approval_seconds), _int(terms.permit_seconds),
        _bool(terms.hand_out_is_start), _bool(terms.approvable), _bool(terms.asks_person), _text(terms.bound_agent), _int(group),
        _int_array(places), _text_array([key for _, key, _ in common.totals]), _text_array(list(dict.fromkeys(subject for _, _, subject in common.totals))),
        _text(terms.pack_template), _text(terms.request_template), keys, _HASH_HEAD, _hash_of_terms(terms, keys), _NO_INT8,
    ))  # fmt: skip


def _hash_of_terms(terms: GuardTerms, keys: bytes) -> bytes:
    """Return the hash by which `sentinel.decision_terms` finds terms: SHA-256 over all columns that it stores of them."""
    said = (
        terms.policy_id, terms.policy_version, terms.policy_label, terms.policy_digest, terms.agent_id, terms.action, terms.risk_class,
        terms.verdict, terms.reason_code, terms.request_template, terms.pack_template,
    )  # fmt: skip
    return sha256(b"".join(map(_text, said)) + keys).digest()


@lru_cache(maxsize=4096)
def _limit(window: str, seconds: int, bucket: int, zone: str, cap: int, verdict: str, code: str) -> bytes:
    return b"".join(
        (_text(window), _int(seconds), _int(bucket), _text(zone), _bigint(cap), _text(verdict), _text(code))
    )


def _budget_sum(one: BudgetSum) -> bytes:
    return _record(
        _UUID_HEAD, one.tenant_id.bytes, _text(one.subject), _text(one.policy_id), _bool(one.is_mixed),
        _slots(tuple(one.limits), tuple(one.limit_places), tuple(one.are_totals)), _bigint_array(one.asked), _bigint_array(one.taken), count=9,
    )  # fmt: skip


@lru_cache(maxsize=4096)
def _slots(limits: tuple[str, ...], places: tuple[int, ...], are_totals: tuple[bool, ...]) -> bytes:
    """Return the three fields of a `sentinel.budget_sum` that are the same for many subjects."""
    totals = b"".join(_int4(1) + (b"\1" if one else b"\0") for one in are_totals)
    totals = _array(1, 0, _BOOL, len(are_totals), 1) + totals
    return _text_array(limits) + _int_array(places) + _field(_BOOLS, len(totals)) + totals


def _rate_sum(one: RateSum) -> bytes:
    return _record(
        _uuid(one.tenant_id), _int_array(one.shared), _text(one.currency), _breaker(*one.breaker), _bool(one.is_mixed), _int(one.operations),
        _int(one.all_operations), _bigint(one.amount_minor), count=15,
    )  # fmt: skip


@lru_cache(maxsize=4096)
def _breaker(
    key: str,
    scope: str,
    target: str,
    window: int,
    bucket: int,
    operations: int | None,
    minor: int | None,
    declared: str,
) -> bytes:
    """Return the eight fields of a `sentinel.rate_sum` that the policy declares."""
    return b"".join((
        _text(key), _text(scope), _text(target), _int(window), _int(bucket), _int(operations), _bigint(minor), _text(declared),
    ))  # fmt: skip


def _numbered(values: Mapping[bytes, int], count: int) -> bytes:
    """Return an array of records with `count` fields, of which the first is the record's place."""
    return _elements([_record(_int(place), value, count=count) for value, place in values.items()])


def _elements(values: Sequence[bytes]) -> bytes:
    """Return a one-dimensional array of records; its element type is left 0."""
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


def _text_array(values: Collection[str]) -> bytes:
    """Return an array of texts as a field; null for an empty one."""
    if not values:
        return _NO_TEXTS
    texts = [value.encode() for value in values]
    body = _array(1, 0, _TEXT, len(texts), 1) + b"".join(
        chain.from_iterable((_int4(len(text)), text) for text in texts)
    )
    return _field(_TEXTS, len(body)) + body


def _int_array(values: Sequence[int]) -> bytes:
    """Return an array of integers as a field."""
    if not values:
        return _NONE_OF_INTS
    body = _array(1, 0, _INT4, len(values), 1) + b"".join(_int4_twice(4, value) for value in values)
    return _field(_INTS, len(body)) + body


def _bigint_array(values: Sequence[int]) -> bytes:
    """Return an array of bigints, at least one, as a field."""
    body = _array(1, 0, _INT8, len(values), 1) + b"".join(_int4_int8(8, value) for value in values)
    return _field(_INT8S, len(body)) + body


def _uuid(value: uuid.UUID | None) -> bytes:
    return _NO_UUID if value is None else _UUID_HEAD + value.bytes


def _int(value: int | None) -> bytes:
    return _NO_INT4 if value is None else _int4_field(_INT4, 4, value)


def _bigint(value: int | None) -> bytes:
    return _NO_INT8 if value is None else _int8_field(_INT8, 8, value)


def _bool(value: bool | None) -> bytes:
    return _NO_BOOL if value is None else _TRUE if value else _FALSE
