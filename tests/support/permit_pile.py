"""Permits that nobody started and that ran out, put in by the thousand: what an agent leaves that asks and never starts."""

from __future__ import annotations

from typing import Any

from tests.support.fixtures import Fixtures, guard_body, unique

# Two of 150.00 for each account: it is full. Copies of one real permit, under other names.
_PILE = """
with template as (
  select o, s from sentinel.operation_rows o
  join sentinel.operation_states s using (tenant_id, operation_id)
  where o.idempotency_key = %(key)s
), copies as (
  select n, gen_random_uuid() as operation, gen_random_uuid() as permit, %(prefix)s || n / 2 as account, %(prefix)s || 'rf_' || n as refund, o, s
  from template, generate_series(0, %(number)s - 1) as n
), operations as (
  insert into sentinel.operation_rows select new.* from copies cross join lateral jsonb_populate_record(o, jsonb_build_object(
    'operation_id', operation, 'idempotency_key', %(prefix)s || 'key_' || n,
    'once_key', replace((o).once_key, %(refund)s, refund))) as new
)
insert into sentinel.operation_states ({columns}) select {new_columns} from copies cross join lateral jsonb_populate_record(s, jsonb_build_object(
  'operation_id', operation, 'permit_id', permit, 'permit_expires_at', clock_timestamp() - interval '1 minute',
  'once_key', replace((s).once_key, %(refund)s, refund),
  'holds', array[sentinel.budget_lock((s).tenant_id, account || '|USD')],
  'limit_owner', replace((s).limit_owner, %(account)s, account))) as new
"""
FORGED = {"decision_differs", "cap_other_than_policy"}
"""What the doctor says of a pile: its operations are copies of one, under its event and at a cap of its own."""
_WRITABLE = """
select column_name::text from information_schema.columns
where table_schema = 'sentinel' and table_name = 'operation_states' and is_generated = 'NEVER' order by ordinal_position
"""
_USAGE = """
insert into sentinel.budgets as u (tenant_id, subject, policy_id, limits, buckets, window_seconds, caps, held, captured)
select tenant_id, sentinel.subject_of(limit_key), sentinel.policy_of(limit_key), array_agg(sentinel.limit_of(limit_key) order by limit_key),
  array_agg(bucket order by limit_key), array_agg(0 order by limit_key), array_agg(greatest(30000, minor) order by limit_key),
  array_agg(minor order by limit_key), array_agg(0::bigint order by limit_key)
from (
  select r.tenant_id, leg.limit_key, leg.bucket, sum(r.amount_minor)::bigint as minor
  from sentinel.reservations r cross join lateral unnest(r.limit_keys, r.buckets) as leg (limit_key, bucket)
  where exists (select from unnest(r.limit_keys) as k where strpos(k, %(prefix)s) > 0) and strpos(leg.limit_key, %(prefix)s) > 0 group by 1, 2, 3
) as legs group by 1, 2, 3
"""
# The totals of who asks, which every copy counts in too.
_TOTALS = """
select sentinel.hold_part(u.tenant_id, u.limit_key, u.bucket, u.window_seconds, greatest(u.cap_minor, u.held_minor + u.captured_minor + l.minor), l.minor)
from (
  select r.tenant_id, leg.limit_key, leg.bucket, sum(r.amount_minor)::bigint as minor
  from sentinel.reservations r cross join lateral unnest(r.limit_keys, r.buckets) as leg (limit_key, bucket)
  where exists (select from unnest(r.limit_keys) as k where strpos(k, %(prefix)s) > 0) and strpos(leg.limit_key, %(prefix)s) = 0 group by 1, 2, 3
) as l join sentinel.usage u using (tenant_id, limit_key, bucket)
"""


def pile_up(fixtures: Fixtures, number: int) -> tuple[str, str]:
    """`number` run-out permits over half as many accounts, each of them full: (prefix of accounts, of refunds)."""
    prefix = unique("pile") + "_"
    account, key = unique("acct"), unique("key")
    body = guard_body(key, value=150, params={"account_ref": account})
    assert fixtures.guard(body)["decision"] == "ALLOW"
    fields: dict[str, Any] = {
        "key": key, "number": number, "prefix": prefix, "account": account, "refund": body["params"]["refund_id"],
    }  # fmt: skip
    with fixtures.admin.cursor() as cursor:
        cursor.execute("set statement_timeout = 0")
        columns = [name for (name,) in cursor.execute(_WRITABLE).fetchall()]
        statement = _PILE.replace("{columns}", ", ".join(columns)).replace(
            "{new_columns}", ", ".join(f"new.{name}" for name in columns)
        )
        cursor.execute(statement.encode(), fields)
        cursor.execute(_USAGE.encode(), fields)
        cursor.execute(_TOTALS.encode(), fields)
        cursor.execute("analyze sentinel.operation_states, sentinel.operations, sentinel.budgets")
    return prefix, prefix + "rf_"
