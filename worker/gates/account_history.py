"""Gives accounts earlier refunds: made through the ordinary calls to the authority, then moved back in time by SQL.

The database's clock, which cannot be set, decides in which part (bucket) of a window a refund counts. So the budget is
reserved and captured as usual, and the usage is then moved to an earlier part of those windows in which it must not
count.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from sentinel.client import Client, ClientError, GuardAnswer, GuardQuestion, Outcome
from sentinel.core.money import Money, money_out
from worker.gates.boundaries import counts_in
from worker.gates.cases import Case
from worker.gates.fixtures import names_of
from worker.gates.run_request import RunRequest
from worker.refunds.rows import RISK_CLASS

_AT_ONCE = 32
_CLEAN = {"duplicate_refund": False, "stale_window": False, "suspicious_reason": False, "customer_attempts_24h": 1}

# moves: [{operation_id, key_prefix, back}]. Moves each usage of the operation back by the interval `back`, adding it to
# what the earlier part holds already.
MOVE = """
with legs as (
  select distinct u.tenant_id, u.limit_key, u.bucket, m.back::interval as back, u.window_seconds, u.cap_minor, u.captured_minor
  from jsonb_to_recordset(%(moves)s) as m (operation_id uuid, key_prefix text, back text)
  join sentinel.reservations r on r.tenant_id = %(tenant_id)s and r.operation_id = m.operation_id
  cross join lateral unnest(r.limit_keys, r.buckets) as leg (limit_key, bucket)
  join sentinel.usage u on u.tenant_id = r.tenant_id and u.limit_key = leg.limit_key and u.bucket = leg.bucket
    and u.policy_id = sentinel.policy_of(leg.limit_key) and u.subject = sentinel.subject_of(leg.limit_key)
  where starts_with(leg.limit_key, m.key_prefix)
), emptied_slots as (
  update sentinel.budgets b set captured = (
    select array_agg(case when legs.limit_key is null then s.captured else 0 end order by s.nth)
    from unnest(b.limits, b.buckets, b.captured) with ordinality as s (name, bucket, captured, nth)
    left join legs on legs.limit_key = b.policy_id || '/' || s.name || '|' || b.subject and legs.bucket = s.bucket)
  where tenant_id = %(tenant_id)s and (subject, policy_id) in (select sentinel.subject_of(limit_key), sentinel.policy_of(limit_key) from legs)
), emptied_parts as (
  update sentinel.usage_parts u set captured_minor = 0 from legs
  where u.tenant_id = legs.tenant_id and u.limit_key = legs.limit_key and u.bucket = legs.bucket
)
insert into sentinel.usage_parts as u (tenant_id, limit_key, bucket, window_seconds, cap_minor, captured_minor)
select tenant_id, limit_key, bucket - back, window_seconds, cap_minor, captured_minor from legs
on conflict (tenant_id, limit_key, bucket) do update set captured_minor = u.captured_minor + excluded.captured_minor,
  cap_minor = greatest(u.cap_minor, u.captured_minor + excluded.captured_minor)
"""


class AccountHistoryFailed(Exception):
    """An earlier refund of a case was not allowed, so the case's history cannot be made."""


@dataclass(frozen=True, slots=True)
class _Piece:
    case: Case
    number: int
    money: Money
    ago: str

    @property
    def key(self) -> str:
        return f"past/{self.case.id}/{self.number}"


def make_account_history(
    client: Client, admin: psycopg.Connection[Any], job: RunRequest, cases: Iterable[Case]
) -> None:
    """Make the earlier refunds of all cases, in pieces of at most the cap. Raises `AccountHistoryFailed`."""
    pasts = [pieces for case in cases if (pieces := _pieces(case, job))]
    # One piece per case at a time: each must be moved back before the limits leave room for the next.
    for number in range(max(map(len, pasts), default=0)):
        batch = [pieces[number] for pieces in pasts if number < len(pieces)]
        for start in range(0, len(batch), _AT_ONCE):
            _refund(client, admin, job, batch[start : start + _AT_ONCE])


def _pieces(case: Case, job: RunRequest) -> list[_Piece]:
    currency, found = case.given.currency, list[_Piece]()
    for earlier in case.given.before:
        left, most = earlier.amount_minor, job.caps.get(currency, 0)
        if most <= 0:
            raise AccountHistoryFailed(f"{case.where}: the policy has no numbers for {currency}")
        while left > 0:
            found.append(_Piece(case, len(found), Money(min(left, most), currency), earlier.ago))
            left -= found[-1].money.amount_minor
    return found


def _refund(client: Client, admin: psycopg.Connection[Any], job: RunRequest, batch: Sequence[_Piece]) -> None:
    answers = client.guard_many([_question(piece, job) for piece in batch])
    permits: list[GuardAnswer] = []
    for piece, answer in zip(batch, answers, strict=True):
        if not isinstance(answer, GuardAnswer) or answer.status != "allowed":
            why = answer.reason_code if isinstance(answer, GuardAnswer) else answer
            raise AccountHistoryFailed(
                f"{piece.case.where}: the earlier refund of {piece.money} could not be made: {why}"
            )
        permits.append(answer)
    started = client.start_many([(permit, str(uuid.uuid4())) for permit in permits])
    reported = client.report_many([_report(piece, job) for piece in batch])
    for piece, *done in zip(batch, started, reported, strict=True):
        if (failed := next((one for one in done if isinstance(one, ClientError)), None)) is not None:
            # Reserved and not captured it would stay where it is, and its case be judged on another history.
            raise AccountHistoryFailed(
                f"{piece.case.where}: the earlier refund of {piece.money} could not be made: {failed}"
            )
    moves = [
        {
            "operation_id": permit.operation_id,
            "key_prefix": window.key_prefix,
            "back": _back(window.kind, window.seconds),
        }
        for piece, permit in zip(batch, permits, strict=True)
        for window in job.windows
        if window.currency == piece.money.currency and not counts_in(piece.ago, window)
    ]
    if moves:
        admin.execute(MOVE, {"tenant_id": job.tenant_id, "moves": Jsonb(moves)})


def _question(piece: _Piece, job: RunRequest) -> GuardQuestion:
    given = piece.case.given
    paid = Money(piece.money.amount_minor * 10, piece.money.currency)
    params = {
        "amount": money_out(piece.money), "ledger_entry_id": piece.key, "refund_id": f"rf/{piece.key}", "channel": given.channel,
        "scenario": job.scenario, "account_ref": names_of(piece.case).account, "order": {"paid": money_out(paid)},
        "risk": _CLEAN,
    }  # fmt: skip
    return {
        "action": job.action, "params": params, "idempotency_key": piece.key, "resource": f"refund/rf/{piece.key}",
        "risk_class": RISK_CLASS,
    }  # fmt: skip


def _report(piece: _Piece, job: RunRequest) -> Outcome:
    return {
        "idempotency_key": piece.key, "action": job.action, "outcome": "success", "resource": f"refund/rf/{piece.key}",
        "risk_class": RISK_CLASS,
    }  # fmt: skip


def _back(kind: str, seconds: int) -> str:
    """The SQL interval that moves usage out of a window: a calendar unit, or twice a rolling window's length."""
    return {"calendar_day": "1 day", "calendar_month": "1 month"}.get(kind, f"{2 * seconds} seconds")
