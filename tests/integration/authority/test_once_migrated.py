"""What was held once under a policy's own key is held under the thing's after the migration, and stands in nobody's way twice."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator

import psycopg
import pytest

from sentinel.core.canonical import canonical_json
from sentinel.store.embedded import RunningServer
from sentinel.store.migrate import HEAD, migrate
from tests.support.old_databases import at_revision, empty_database
from tests.support.world import guard_body, make_world

DIGEST = "sha256:" + "1" * 64
UNKNOWN = "sha256:" + "2" * 64


@pytest.fixture
def old_url(pg_server: RunningServer) -> Iterator[str]:
    """A database as the program before this one left it: at revision 0014."""
    with empty_database(pg_server) as url:
        at_revision(url, "0014")
        yield url


def put(
    admin: psycopg.Connection, tenant: uuid.UUID, key: str, params: dict[str, str], digest: str, **state: object
) -> uuid.UUID:
    """An operation as revision 0014 kept it."""
    operation = uuid.uuid4()
    admin.execute(
        "insert into sentinel.operations (tenant_id, operation_id, idempotency_key, principal_id, agent_id, action, resource,"
        " risk_class, digest, request, salt, once_key, created_at)"
        " values (%s, %s, %s, %s, 'a', 'x', 'x', 'standard', 'd', %s, 's', %s, clock_timestamp())",
        [tenant, operation, f"k{operation}", tenant, json.dumps({"params": params}), key])  # fmt: skip
    fields = {"status": "allowed", "decision": "ALLOW", "once_live": True} | state
    admin.execute(
        "insert into sentinel.operation_states (tenant_id, operation_id, reason_code, policy_id, policy_version, policy_label,"
        f" policy_digest, decision_event_id, once_key, {', '.join(fields)})"
        f" values (%s, %s, 'r', 'p', 'v', 'l', %s, %s, %s, {', '.join(['%s'] * len(fields))})".encode(),
        [tenant, operation, digest, uuid.uuid4(), key, *fields.values()])  # fmt: skip
    return operation


@pytest.mark.parametrize("between", ["0014", "0015"])
def test_old_keys_are_named_after_their_thing_and_what_two_policies_let_happen_goes_to_a_person(
    old_url: str, between: str
) -> None:
    """At once, and by way of the program in between."""
    tenant = uuid.uuid4()
    permit = {"permit_id": uuid.uuid4(), "permit_expires_at": "infinity"}
    done = {"status": "completed", "started_at": "2026-11-01T00:00:00Z", "outcome": "success"}
    with psycopg.connect(old_url, autocommit=True) as admin:
        admin.execute(
            "insert into sentinel.policies (policy_digest, policy_id, policy_version, canonical) values (%s, 'p', 'v', %s)",
            [DIGEST, canonical_json({"once_per": "params.refund_id"})])  # fmt: skip
        told = put(admin, tenant, "retail-refund|rf_1", {"refund_id": "rf_1"}, DIGEST)
        guessed = put(admin, tenant, "order-fraud|s:9", {"band": "s:9", "order_key": "s:9"}, UNKNOWN)
        waits = put(admin, tenant, "retail-refund|rf_2", {"refund_id": "rf_2"}, DIGEST, **permit)
        paid = put(admin, tenant, "small-refund|rf_2", {"refund_id": "rf_2"}, DIGEST, **done)
        third = put(admin, tenant, "third|rf_2", {"refund_id": "rf_2"}, UNKNOWN, **permit)
        over = put(admin, tenant, "retail-refund|rf_2", {"refund_id": "rf_2"}, DIGEST, once_live=False)
        strange = put(admin, tenant, "odd|zz", {}, UNKNOWN)
        at_revision(old_url, between)
        assert migrate(old_url) == (between, HEAD)
        found = dict(admin.execute("select operation_id, once_key from sentinel.operation_states").fetchall())
        assert found == {
            told: "refund|rf_1", guessed: "order|s:9", paid: "refund|rf_2", waits: "refund|rf_2~", third: "refund|rf_2~~",
            over: "refund|rf_2", strange: "odd|zz",
        }  # fmt: skip
        ((run_out,),) = admin.execute(
            "select count(*) from sentinel.operation_states where operation_id = any(%s)"
            " and permit_expires_at <= clock_timestamp()", [[waits, third]]).fetchall()  # fmt: skip
        assert run_out == 2, "their permits are asked for again"
        assert admin.execute(
            "select sentinel.once_seen(%s, 'refund|rf_2~', %s), sentinel.once_seen(%s, 'refund|rf_2', null)",
            [tenant, waits, tenant],
        ).fetchone() == ("alike", "same")
    world = make_world(old_url)
    try:
        assert world.guard(guard_body())["decision"] == "ALLOW"
    finally:
        world.close()
