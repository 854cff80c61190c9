"""Streams of approvals over real HTTP: places that come back, by key, by tenant and in all; what is decided arrives once."""

from __future__ import annotations

import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing

import psycopg
import pytest

from sentinel.authority.actor import Actor
from sentinel.authority.approvals import resolve_approval
from sentinel.authority.keys import WORKER_SCOPES, issue_key, revoke_key
from sentinel.store.database import CONSOLE, Pool, with_role
from tests.support.busy import overload
from tests.support.fixtures import AGENT, add_tenant, guard_body, unique
from tests.support.served_programs import Served, eventually, served_on

PER_KEY, PER_TENANT, IN_ALL = 3, 4, 6


class Small:
    """An authority of one process with few places, two tenants, and a console's connection."""

    def __init__(self, served: Served, other_key: str, approver: Actor, pool: Pool) -> None:
        self.served, self.other_key, self.approver, self.pool = served, other_key, approver, pool

    def new_key(self, agent_id: str | None = None) -> tuple[uuid.UUID, str]:
        made = issue_key(self.pool, uuid.UUID(self.served.tenant_id), agent_id=agent_id, scopes=WORKER_SCOPES)
        return made.key_id, made.key

    def listen(self, key: str, query: str = "") -> Listener:
        return Listener(self.served.port, key, query)

    def decide(self, key: str) -> str:
        """An approval that this key asked for and a person gave; its id."""
        asked = self.served.post("action/guard", guard_body(unique("appr"), value=300), key=key).json["approval_id"]
        with psycopg.connect(self.served.database_url) as admin:
            (digest,) = admin.execute(
                "select digest from sentinel.approvals where approval_id = %s", [asked]
            ).fetchone() or ("",)
        resolve_approval(self.pool, self.approver, uuid.UUID(asked), verdict="approve", reason="looked", digest=digest)
        return str(asked)


class Listener:
    """A stream that was asked for: what came of it so far."""

    def __init__(self, port: int, key: str, query: str = "") -> None:
        self.connection = socket.create_connection(("127.0.0.1", port), timeout=60)
        self.connection.sendall(
            f"GET /api/sentinel/approvals/stream{query} HTTP/1.1\r\nHost: x\r\nX-API-Key: {key}\r\n\r\n".encode()
        )
        self.got = b""
        self.until(b"CONNECTED", b"instance")
        self.status = int(self.got.split()[1])

    def until(self, *wanted: bytes) -> bytes:
        """What came once one of `wanted` has, or the answer's end."""
        while not any(one in self.got for one in (*wanted, b"\r\n0\r\n\r\n")) and (chunk := self.connection.recv(4096)):
            self.got += chunk
        return self.got

    def close(self) -> None:
        self.connection.close()


@pytest.fixture(scope="module")
def small(new_database: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Small]:
    url = new_database()  # type: ignore[operator]
    tenant_id, key, operators = add_tenant(url, unique("streams").replace("_", "-"))
    _, other_key, _ = add_tenant(url, unique("others").replace("_", "-"))
    bounds = {
        "SENTINEL_PROCESSES": "1", "SENTINEL_MAX_STREAMS": str(IN_ALL), "SENTINEL_MAX_STREAMS_PER_TENANT": str(PER_TENANT),
        "SENTINEL_MAX_STREAMS_PER_KEY": str(PER_KEY),
    }  # fmt: skip
    with (
        served_on(url, tmp_path_factory.mktemp("streams"), tenant_id=str(tenant_id), key=key, **bounds) as served,
        closing(Pool(with_role(url, CONSOLE), size=2)) as pool,
    ):
        yield Small(served, other_key, Actor(tenant_id, operators["approver"], "approver@x.example", "approver"), pool)


def test_streams_that_are_left_one_after_another_leave_their_places(small: Small) -> None:
    number = 40
    for _ in range(number):
        with closing(small.listen(small.served.key)) as listener:
            assert listener.status == 200, listener.got
        # The other end is told of a closed connection at once, and acts on it in its next turn.
        time.sleep(0.02 * overload())
    print(f"N={number} streams one after another, {PER_KEY} places")


def test_the_refusal_says_whose_places_are_taken_and_others_have_theirs(small: Small) -> None:
    _, second = small.new_key()
    with ExitStack() as held:

        def listen(key: str) -> Listener:
            return held.enter_context(closing(small.listen(key)))

        assert [listen(small.served.key).status for _ in range(PER_KEY)] == [200] * PER_KEY
        refused = listen(small.served.key)
        assert (refused.status, b"this key has 3" in refused.got) == (503, True), refused.got
        assert b"application/problem+json" in refused.got
        assert b"Retry-After" in refused.got or b"retry-after" in refused.got
        assert listen(second).status == 200
        refused = listen(second)
        assert (refused.status, b"this tenant has 4" in refused.got) == (503, True), refused.got
        assert [listen(small.other_key).status for _ in range(2)] == [200, 200], "another tenant has places of its own"
        refused = listen(small.other_key)
        assert (refused.status, b"this process has 6" in refused.got) == (503, True), refused.got

    def is_taken() -> bool:
        with closing(small.listen(small.served.key)) as listener:
            return listener.status == 200

    assert eventually(is_taken, within=3)


def test_a_decision_arrives_once_at_each_listener_of_its_key_or_agent_and_at_no_other(small: Small) -> None:
    _, second = small.new_key()
    _, bound = small.new_key(AGENT)
    with (
        closing(small.listen(small.served.key)) as one,
        closing(small.listen(bound)) as two,
        closing(small.listen(second)) as other,
    ):
        ids = [small.decide(small.served.key) for _ in range(3)]
        for listener in (one, two):
            listener.until(ids[-1].encode())
            assert [listener.got.count(wanted.encode()) for wanted in ids] == [1, 1, 1]
            assert b'"catchup":false' in listener.got
        own = small.decide(second)
        other.until(own.encode())
        assert not any(foreign.encode() in other.got for foreign in ids)


def test_who_comes_back_gets_what_was_decided_meanwhile_and_then_what_is(small: Small) -> None:
    missed = small.decide(small.served.key)
    with closing(small.listen(small.served.key, "?last_seen=2026-01-01T00:00:00Z")) as listener:
        listener.until(missed.encode())
        later = small.decide(small.served.key)
        got = listener.until(later.encode())
    assert (got.count(missed.encode()), got.count(later.encode())) == (1, 1)
    assert got.index(b'"catchup":true') < got.index(later.encode())


def test_a_stream_of_a_key_that_is_revoked_ends_before_the_next_decision(small: Small) -> None:
    key_id, key = small.new_key()
    asked = small.served.post("action/guard", guard_body(unique("appr"), value=300), key=key).json["approval_id"]
    with closing(small.listen(key)) as listener:
        revoke_key(small.pool, uuid.UUID(small.served.tenant_id), key_id)
        time.sleep(1)
        with psycopg.connect(small.served.database_url) as admin:
            (digest,) = admin.execute(
                "select digest from sentinel.approvals where approval_id = %s", [asked]
            ).fetchone() or ("",)
        resolve_approval(small.pool, small.approver, uuid.UUID(asked), verdict="reject", reason="looked", digest=digest)
        assert asked.encode() not in listener.until(asked.encode())
