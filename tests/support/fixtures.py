"""Builders: a small valid fixtures on a database, so that a test states only what matters to it."""

from __future__ import annotations

import functools
import itertools
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from argon2 import PasswordHasher
from werkzeug.test import TestResponse

from sentinel.authority.app import build_authority, create_app
from sentinel.authority.engine import Authority
from sentinel.authority.housekeeping import run_housekeeping, sequence_events
from sentinel.authority.keys import WORKER_SCOPES, issue_key
from sentinel.authority.policies import declare_policies
from sentinel.authority.settings import Settings
from sentinel.authority.tenants import create_tenant
from sentinel.platform.http.rate_limit import SharedRateLimit
from sentinel.platform.resources import invariants_sql, policies_dir
from sentinel.policy.library import ReloadablePolicies
from sentinel.store.database import CONSOLE, Pool, with_role
from sentinel.store.ids import new_id
from sentinel.store.invariants import read_invariants, run_invariants
from tests.support.asgi_client import AsgiClient, InProcessApp
from tests.support.kept_sessions import connect

SECRET = "only-for-tests-0123456789abcdefghij"
PASSWORD = "correct horse battery staple"
ACTION, AGENT = "refund.create", "retail-refund-agent"

_numbers = itertools.count(1)


def unique(prefix: str = "t") -> str:
    """A name that no other test of this process used."""
    return f"{prefix}_{next(_numbers)}_{uuid.uuid4().hex[:8]}"


def guard_body(key: str | None = None, *, value: Any = 1, currency: str = "USD", **over: Any) -> dict[str, Any]:
    """A guard request that the retail policy allows; `over` replaces top-level fields, `params` is merged."""
    key = key or unique("key")
    params = {
        "amount": {"value": value, "currency": currency}, "ledger_entry_id": f"lge_{key}", "refund_id": f"rf_{key}",
        "account_ref": f"acct_{key}",
        "risk": {"duplicate_refund": False, "stale_window": False, "suspicious_reason": False, "customer_attempts_24h": 1},
    } | over.pop("params", {})  # fmt: skip
    return {
        "agent_id": AGENT, "action": ACTION, "idempotency_key": key, "resource": f"refund/rf_{key}",
        "risk_class": "standard", "params": {k: v for k, v in params.items() if v is not None},
        "evidence_context": {"correlation_id": "c"}, **over,
    }  # fmt: skip


def four_keys(body: dict[str, Any]) -> dict[str, Any]:
    """The same request from a client without a start step."""
    return {name: body[name] for name in ("agent_id", "action", "params", "idempotency_key")}


def start_body(body: dict[str, Any], answer: dict[str, Any], start_id: str | None = None) -> dict[str, Any]:
    """The start that belongs to a guard request and its answer."""
    return {
        "idempotency_key": body["idempotency_key"], "action": body["action"], "agent_id": body["agent_id"],
        "resource": answer["resource"], "risk_class": answer["risk_class"], "permit_token": answer["permit_token"],
        "start_id": start_id or str(uuid.uuid4()),
    }  # fmt: skip


@functools.cache
def _any_violation() -> bytes:
    return f"select {' or '.join(f'exists ({one.query})' for one in read_invariants(invariants_sql()))}".encode()


def holds_all_invariants(connection: psycopg.Connection[Any]) -> bool:
    """Whether no invariant is broken, asked in one statement: four hundred of them take a test longer than what it tries.

    False, too, of what `run_invariants` would leave unchecked.
    """
    try:
        row = connection.execute(_any_violation(), prepare=True).fetchone()
    except psycopg.Error:
        return False
    return row is not None and not row[0]


def broken_invariants(connection: psycopg.Connection[Any]) -> list[str]:
    """Names of the invariants that do not hold; what breaks them is printed."""
    if holds_all_invariants(connection):
        return []
    broken = [v for v in run_invariants(connection, invariants_sql()) if v.violations]
    for one in broken:
        print(f"{one.name}: {one.violations}, {', '.join(one.damaged)}")
    return [one.name for one in broken]


@dataclass
class Fixtures:
    """One tenant on one database, and an authority in this process to ask."""

    url: str
    tenant_id: uuid.UUID
    key: str
    operators: dict[str, uuid.UUID]
    authority: Authority
    settings: Settings
    admin: psycopg.Connection[Any]
    console_pool: Pool

    @functools.cached_property
    def app(self) -> InProcessApp:
        """The authority as a process serves it; made for who asks over HTTP."""
        return InProcessApp(create_app(self.settings, self.authority, unlimited()))

    @functools.cached_property
    def client(self) -> AsgiClient:
        """Who asks it."""
        return self.app.test_client()

    def post(
        self, path: str, body: Any, *, key: str | None = None, prefix: str = "/api/sentinel", **rest: Any
    ) -> TestResponse:
        """POST to the authority as this tenant's agent."""
        return self.client.post(
            f"{prefix}/{path}", json=body, headers={"X-API-Key": key or self.key, **rest.pop("headers", {})}, **rest
        )

    def get(self, path: str, *, key: str | None = None) -> TestResponse:
        """GET from the authority as this tenant's agent."""
        return self.client.get(f"/api/sentinel/{path}", headers={"X-API-Key": key or self.key})

    def guard(self, body: dict[str, Any] | None = None, **over: Any) -> dict[str, Any]:
        """A guard's answer; fails the test unless it is 200."""
        response = self.post("action/guard", body if body is not None else guard_body(**over))
        assert response.status_code == 200, response.text
        return dict(response.get_json())

    def start(self, body: dict[str, Any], answer: dict[str, Any], start_id: str | None = None) -> TestResponse:
        """Redeem a guard answer's permit."""
        return self.post("action/guard/start", start_body(body, answer, start_id))

    def report(self, body: dict[str, Any], outcome: str = "success", **over: Any) -> TestResponse:
        """Report an outcome the way a client without tokens does."""
        fields = {name: body[name] for name in ("idempotency_key", "action", "agent_id")}
        return self.post("action/guard/report", {**fields, "outcome": outcome, **over})

    def new_key(
        self, *, agent_id: str | None = None, scopes: tuple[str, ...] = WORKER_SCOPES, owner: uuid.UUID | None = None
    ) -> str:
        """Another agent key of this tenant."""
        return issue_key(
            self.console_pool, self.tenant_id, agent_id=agent_id, scopes=scopes, owner_operator_id=owner
        ).key

    def new_tenant(self, label: str) -> Tenant:
        """Another tenant beside this one."""
        return _add_tenant(self.console_pool, self.admin, label)

    def run_housekeeping(self) -> None:
        """One round of what the housekeeper does."""
        run_housekeeping(self.authority.pool, self.authority.report_deadline_seconds)
        while sequence_events(self.authority.pool):
            pass

    def broken_invariants(self) -> list[str]:
        """Names of the invariants that do not hold; a test wants none."""
        return broken_invariants(self.admin)

    def one(self, query: str, *arguments: Any) -> Any:
        """The first column of the first row of a query as administrator."""
        row = self.admin.execute(query.encode(), arguments).fetchone()
        return row[0] if row else None

    @contextmanager
    def as_role(self, role: str) -> Iterator[psycopg.Connection[Any]]:
        """A connection with exactly one program's rights."""
        with connect(with_role(self.url, role)) as connection:
            yield connection

    def close(self) -> None:
        """Give everything back."""
        if "app" in self.__dict__:
            self.app.close()
        self.authority.pool.close()
        self.console_pool.close()
        self.admin.close()


Tenant = tuple[uuid.UUID, str, dict[str, uuid.UUID]]
"""A tenant with one person per role and an agent key: (tenant id, key, operators by role)."""


def add_tenant(url: str, label: str) -> Tenant:
    """A tenant of its own on a database that others use too."""
    pool = Pool(with_role(url, CONSOLE), size=1)
    try:
        with psycopg.connect(url, autocommit=True) as admin:
            return _add_tenant(pool, admin, label)
    finally:
        pool.close()


def _add_tenant(pool: Pool, admin: psycopg.Connection[Any], label: str) -> Tenant:
    tenant_id = create_tenant(pool, label)
    operators = {role: new_id() for role in ("viewer", "approver", "admin")}
    people = [
        (tenant_id, operator_id, f"{role}@{label}.example", quick_hash(PASSWORD), role)
        for role, operator_id in operators.items()
    ]
    with admin.cursor() as cursor:
        cursor.executemany(
            "insert into sentinel.operators (tenant_id, operator_id, email, password_hash, role)"
            " values (%s, %s, %s, %s, %s)", people)  # fmt: skip
    return tenant_id, issue_key(pool, tenant_id, agent_id=None, scopes=WORKER_SCOPES).key, operators


@functools.cache
def quick_hash(password: str) -> str:
    """A hash that a password is checked against in no time: its strength is what `tests/unit/test_passwords.py` is about."""
    return PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash(password)


@functools.cache
def unlimited() -> SharedRateLimit:
    """One for all sets of fixtures: its semaphores take longer to make than many a test."""
    return SharedRateLimit(per_second=100_000, burst=100_000)


@contextmanager
def served(
    settings: Settings, policies: ReloadablePolicies, *, per_second: int | None = None
) -> Iterator[tuple[Authority, InProcessApp]]:
    """Another authority of these settings, and its app as a process serves it."""
    authority = build_authority(settings, policies)
    limit = SharedRateLimit(per_second=per_second, burst=per_second) if per_second else unlimited()
    app = InProcessApp(create_app(settings, authority, limit))
    try:
        yield authority, app
    finally:
        app.close()
        authority.pool.close()


def make_fixtures(url: str, *, policies: Path | None = None, tenant: Tenant | None = None, **over: Any) -> Fixtures:
    """A set of fixtures on a migrated database; `over` are the authority's settings.

    `tenant` is there already, with the shipped policies declared: the database is a copy of one that had fixtures.
    """
    settings = Settings(database_url=url, secret_keys=(SECRET,), pool_size=40, **over)
    authority = build_authority(settings, ReloadablePolicies(policies or policies_dir()))
    console_pool, admin = Pool(with_role(url, CONSOLE), size=8), connect(url)
    if tenant is None:
        declare_policies(authority)  # as a running authority does after each load
        tenant = _add_tenant(console_pool, admin, unique("tenant").replace("_", "-"))
        admin.execute("insert into refunds.defaults (tenant_id) values (%s) on conflict do nothing", [tenant[0]])
    return Fixtures(url, *tenant, authority, settings, admin, console_pool)
