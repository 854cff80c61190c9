"""Stored requests of the Agent Approval Protocol.

A request's status follows from the state of its operation, which is not stored here. Each function executes one
statement. A request is consumed under one consume key at most, and never after it was cancelled.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sentinel.store.database import Pool
from sentinel.store.queries import all_rows, changed, one_row
from sentinel.store.sql_template import SqlTemplate


@dataclass(frozen=True, slots=True)
class AapRequest:
    """A request as it was submitted, and what its client did with it; times timezone-aware UTC.

    `question` is the operation to guard, as JSON; it is None if the tool table refused the call (`refusal`, as "code:
    sentence") or lets the tool run unguarded. `decided_at` and `expires_at` are those of the consumed permission.
    """

    tenant_id: uuid.UUID
    request_id: uuid.UUID
    principal_id: uuid.UUID
    agent_id: str
    submission: str
    question: str | None
    refusal: str | None
    operation_id: uuid.UUID | None
    created_at: datetime
    deadline_at: datetime
    cancelled_at: datetime | None
    consume_key: str | None
    consumed_at: datetime | None
    decided_at: datetime | None
    expires_at: datetime | None
    outcome: str | None
    outcome_note: str | None
    reported_at: datetime | None


@dataclass(frozen=True, slots=True)
class _Reasoning:
    reasoning: str


COLUMNS = """tenant_id, request_id, principal_id, agent_id, submission, question, refusal, operation_id, created_at, deadline_at,
  cancelled_at, consume_key, consumed_at, decided_at, expires_at, outcome, outcome_note, reported_at"""
SUBMIT = SqlTemplate("""
insert into sentinel.aap_requests (tenant_id, request_id, principal_id, idempotency_key, agent_id, submission, question, refusal,
  reasoning, created_at, deadline_at)
select %(tenant_id)s, %(request_id)s, %(principal_id)s, %(idempotency_key)s, %(agent_id)s, %(submission)s, %(question)s,
  %(refusal)s, %(reasoning)s, moment, moment + make_interval(secs => %(timeout_seconds)s) from clock_timestamp() as moment
on conflict on constraint aap_requests_key_once do nothing
returning {columns}
""").fill(columns=COLUMNS)
SUBMITTED = SqlTemplate("""
select {columns} from sentinel.aap_requests
where tenant_id = %(tenant_id)s and principal_id = %(principal_id)s and idempotency_key = %(idempotency_key)s
""").fill(columns=COLUMNS)
FIND = SqlTemplate("""
select {columns} from sentinel.aap_requests
where tenant_id = %(tenant_id)s and request_id = %(request_id)s and principal_id = %(principal_id)s
""").fill(columns=COLUMNS)
NAME_OPERATION = """
update sentinel.aap_requests set operation_id = %(operation_id)s
where tenant_id = %(tenant_id)s and request_id = %(request_id)s and operation_id is null
"""
CANCEL = """
update sentinel.aap_requests set cancelled_at = clock_timestamp()
where tenant_id = %(tenant_id)s and request_id = %(request_id)s and cancelled_at is null and consume_key is null
"""
# A request is claimed before it is started, so that a cancelled request is never started. For a request with a question
# the authority lets only one consume key start the operation, whichever key has the claim; so a key may take over the
# claim of `found_key`. A request without a question belongs to the first key for good.
CLAIM = """
update sentinel.aap_requests set consume_key = %(consume_key)s
where tenant_id = %(tenant_id)s and request_id = %(request_id)s and cancelled_at is null and consumed_at is null
  and (consume_key = %(consume_key)s or consume_key is not distinct from %(found_key)s and (consume_key is null or question is not null))
"""
# Gives the claim back to `found_key`, which had it before and may still be starting the request: an unclaimed request
# could be cancelled.
RELEASE = """
update sentinel.aap_requests set consume_key = %(found_key)s
where tenant_id = %(tenant_id)s and request_id = %(request_id)s and consume_key = %(consume_key)s and consumed_at is null
"""
# For a request with a question only the key that started the operation gets here, so it may replace another key's
# claim.
CONSUME = """
update sentinel.aap_requests set decided_at = %(decided_at)s, expires_at = %(expires_at)s, consume_key = %(consume_key)s,
  consumed_at = greatest(clock_timestamp(), %(decided_at)s)
where tenant_id = %(tenant_id)s and request_id = %(request_id)s and cancelled_at is null and consumed_at is null
  and (consume_key is null or consume_key = %(consume_key)s or question is not null)
"""
# Newest first, each text once, because a client that submits again usually sends the same text.
REASONING = """
select r.reasoning from sentinel.aap_requests r
where r.tenant_id = %(tenant_id)s and r.operation_id = %(operation_id)s and r.reasoning is not null
group by r.reasoning order by max(r.created_at) desc limit 3
"""
REPORT = """
update sentinel.aap_requests set outcome = %(outcome)s, outcome_note = %(note)s, reported_at = greatest(clock_timestamp(), consumed_at)
where tenant_id = %(tenant_id)s and request_id = %(request_id)s and consumed_at is not null and outcome is null
"""


def submit(pool: Pool, **fields: Any) -> tuple[AapRequest, bool]:
    """Store a request, or find the one of this principal and idempotency key; return it and whether it is new.

    `fields` are SUBMIT's parameters.
    """
    made = one_row(pool, AapRequest, SUBMIT, fields)
    found = made or one_row(pool, AapRequest, SUBMITTED, fields)
    assert found is not None
    return found, made is not None


def find_request(pool: Pool, tenant_id: uuid.UUID, principal_id: uuid.UUID, request_id: uuid.UUID) -> AapRequest | None:
    """Return the principal's request with that id, or None."""
    return one_row(
        pool, AapRequest, FIND, {"tenant_id": tenant_id, "principal_id": principal_id, "request_id": request_id}
    )


def name_operation(pool: Pool, row: AapRequest, operation_id: uuid.UUID) -> None:
    """Store the id of the operation that the request is guarded as."""
    changed(pool, NAME_OPERATION, {**_key(row), "operation_id": operation_id})


def cancel(pool: Pool, row: AapRequest) -> bool:
    """Cancel a request; return False if it was already cancelled, or is claimed or consumed."""
    return changed(pool, CANCEL, _key(row)) > 0


def claim(pool: Pool, row: AapRequest, consume_key: str) -> bool:
    """Claim a request for a consume key, if its claim is still as in `row`.

    Returns False if the request is cancelled, consumed, or claimed by another key since.
    """
    return changed(pool, CLAIM, {**_key(row), "consume_key": consume_key, "found_key": row.consume_key}) > 0


def release(pool: Pool, row: AapRequest, consume_key: str) -> None:
    """Give back a claim under which nothing was started: to the other key that `row` names, or to nobody."""
    found_key = None if row.consume_key == consume_key else row.consume_key
    changed(pool, RELEASE, {**_key(row), "consume_key": consume_key, "found_key": found_key})


def consume(pool: Pool, row: AapRequest, consume_key: str, *, decided_at: datetime, expires_at: datetime) -> None:
    """Record that a request was started under this key; a repeat changes nothing."""
    changed(
        pool, CONSUME, {**_key(row), "consume_key": consume_key, "decided_at": decided_at, "expires_at": expires_at}
    )


def report(pool: Pool, row: AapRequest, outcome: str, note: str | None) -> None:
    """Record the outcome of a consumed request; a repeat changes nothing."""
    changed(pool, REPORT, {**_key(row), "outcome": outcome, "note": note})


def reasoning_of(pool: Pool, tenant_id: uuid.UUID, operation_id: uuid.UUID) -> list[str]:
    """Return the reasons that agents gave for this operation, newest first, at most three: text that no decision reads."""
    rows = all_rows(pool, _Reasoning, REASONING, {"tenant_id": tenant_id, "operation_id": operation_id})
    return [row.reasoning for row in rows]


def _key(row: AapRequest) -> dict[str, Any]:
    return {"tenant_id": row.tenant_id, "request_id": row.request_id}
