"""A small fixtures to try the console in: tenants, people with passwords, agents whose guards wait for approval."""

from __future__ import annotations

import hashlib
import itertools
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import psycopg
import pytest

from ops_console.app import create_app
from ops_console.audience import Audience
from ops_console.settings import ConsoleSettings
from sentinel.authority.actor import Actor
from sentinel.authority.app import build_authority
from sentinel.authority.engine import Authority, Caller
from sentinel.authority.housekeeping import sequence_events
from sentinel.authority.keys import WORKER_SCOPES, find_key_by_id, issue_key
from sentinel.authority.settings import Settings
from sentinel.authority.tenants import create_tenant
from sentinel.core.operation import Operation, build_operation
from sentinel.platform.resources import policies_dir
from sentinel.policy.library import ReloadablePolicies
from sentinel.store.database import CONSOLE, Pool, with_role
from sentinel.store.ids import new_id
from tests.support.asgi_client import AsgiClient, InProcessApp
from tests.support.fixtures import broken_invariants, quick_hash
from tests.support.kept_sessions import connect
from tests.support.verbs import guarded

if TYPE_CHECKING:
    from tests.integration.console.second_administrator import Two

PASSWORD = "correct horse battery staple"
ADD_OPERATOR = (
    "insert into sentinel.operators (tenant_id, operator_id, email, password_hash, role, changed_by_another_at)"
    " values (%s, %s, %s, %s, %s, %s)"
)
"""Somebody who was there before: without an event."""
_numbers = itertools.count(1)


@dataclass
class Person:
    """A signed-in operator's browser: sends the cookie by itself and the CSRF token with it."""

    client: AsgiClient
    email: str
    csrf: str

    def get(self, path: str, **rest: Any) -> Any:
        return self.client.get(path, **rest)

    def post(self, path: str, body: Any = None, *, headers: dict[str, str] | None = None) -> Any:
        return self.client.post(path, json=body, headers={"X-CSRF-Token": self.csrf, **(headers or {})})

    def delete(self, path: str) -> Any:
        return self.client.delete(path, headers={"X-CSRF-Token": self.csrf})

    def approve(self, approval_id: Any, **more: Any) -> Any:
        return self._decide(approval_id, "approve", {"reason": "looked at it", **more})

    def reject(self, approval_id: Any) -> Any:
        return self._decide(approval_id, "reject", {"reason": "not this one"})

    def handled(self, approval_id: Any) -> Any:
        return self._decide(approval_id, "handled", {"reason": "paid at the till", "reference": "till-7"})

    def analyst(self, order_id: str, decision: str, reason: str = "called the customer") -> Any:
        """An analyst's decision on an order of the source `demo`, after a look at it."""
        path = f"/ops/api/orders/demo/{quote(order_id)}"
        answer = self.get(path)
        seen = {"digest": answer.json.get("digest", "unseen")}
        if answer.status_code == 200:
            seen["status"] = answer.json["status"]
        return self.post(f"{path}/{decision}", {"reason": reason, **seen})

    def _decide(self, approval_id: Any, verdict: str, body: dict[str, Any]) -> Any:
        """Look first, as a person does: what was shown goes with the decision."""
        shown = self.get(f"/ops/api/approvals/{approval_id}").json
        return self.post(
            f"/ops/api/approvals/{approval_id}/{verdict}", {"digest": shown.get("digest", "unseen"), **body}
        )


@dataclass
class Browser:
    """A person at the pages, without scripts: follows nothing by itself, posts forms with the session's token."""

    client: AsgiClient
    email: str
    csrf: str

    def get(self, path: str, **rest: Any) -> Any:
        return self.client.get(path, headers={"Accept": "text/html"}, **rest)

    def submit(self, path: str, **fields: Any) -> Any:
        """Post a form; `proof=PASSWORD` where the act needs it."""
        return self.client.post(path, data={"csrf": self.csrf, **fields}, headers={"Accept": "text/html"})


@dataclass
class Fixtures:
    """One database with an authority and any number of consoles. Build what a test needs, and only that."""

    url: str
    pool: Pool
    authority: Authority
    tenant_id: uuid.UUID
    password_hash: str
    opened: list[InProcessApp] = field(default_factory=list)
    _admin: psycopg.Connection[Any] | None = None
    _connecting: threading.Lock = field(default_factory=threading.Lock)

    def sql(self, statement: str, *values: Any) -> list[Any]:
        """As an administrator: for arranging and for looking, never what a test is about."""
        if statement.startswith("set "):  # what it sets is for itself only
            with psycopg.connect(self.url, autocommit=True) as connection:
                return _rows(connection.execute(statement, values or None))
        with self._connecting:
            if self._admin is None or self._admin.closed:
                self._admin = connect(self.url)
        return _rows(self._admin.execute(statement, values or None))

    def close(self) -> None:
        """Give everything back."""
        for app in self.opened:
            app.close()
            context = app.flask.extensions["console"]
            context.pool.close()
            context.board.pool.close()
        for pool in (self.pool, self.authority.pool):
            pool.close()
        if self._admin is not None:
            self._admin.close()

    def tenant(self, label: str) -> uuid.UUID:
        return create_tenant(self.pool, label)

    def operator(
        self, name: str, role: str = "approver", tenant_id: uuid.UUID | None = None, since: str = "-infinity"
    ) -> Actor:
        """An account that nobody else has changed since `since`: it may decide what was asked later."""
        tenant, operator_id, email = tenant_id or self.tenant_id, new_id(), f"{name}@demo.local"
        self.sql(ADD_OPERATOR, tenant, operator_id, email, self.password_hash, role, since)
        return Actor(tenant, operator_id, email, role)

    def app(self, audience: Audience = Audience.BOTH, **settings: Any) -> InProcessApp:
        given = {"database_url": self.url, "insecure_cookies": True, "require_second_factor": "nobody", **settings}
        app = InProcessApp(create_app(ConsoleSettings(**given), audience=audience))
        self.opened.append(app)
        return app

    def sign_in(self, who: Actor | str, app: Any = None, tenant: str | None = None) -> Person:
        email = who if isinstance(who, str) else who.email
        client = (app or self.app()).test_client()
        body = {"email": email, "password": PASSWORD, **({"tenant": tenant} if tenant else {})}
        answer = client.post("/ops/api/session", json=body)
        assert answer.status_code == 200, answer.get_data(as_text=True)
        return Person(client, email, answer.json["csrf_token"])

    def person(self, name: str, role: str = "approver", app: Any = None) -> Person:
        return self.sign_in(self.operator(name, role), app)

    def browser(self, name: str, role: str = "approver", app: Any = None, *, proved: bool = False) -> Browser:
        """A new operator who signed in by the page. `proved`: sensitive actions ask for no proof in the next minutes."""
        return self.at_page(self.operator(name, role).email, app, proved=proved)

    def at_page(self, email: str, app: Any = None, *, proved: bool = False, **fields: str) -> Browser:
        """A person of that address who signed in by the page."""
        client = (app or self.app()).test_client()
        answer = client.post("/ops/sign-in", data={"email": email, "password": PASSWORD, **fields})
        assert answer.status_code == 303, answer.get_data(as_text=True)
        cookie = client.get_cookie("sentinel")
        assert cookie is not None
        hashed = hashlib.sha256(cookie.value.encode()).digest()
        (csrf,) = self.sql("select csrf_token from sentinel.operator_sessions where session_hash = %s", hashed)[0]
        if proved:
            self.sql(
                "update sentinel.operator_sessions set stepped_up_at = clock_timestamp() where session_hash = %s",
                hashed,
            )
        return Browser(client, email, csrf)

    def caller(
        self, owner: Actor | None = None, tenant_id: uuid.UUID | None = None, scopes: tuple[str, ...] = WORKER_SCOPES,
        agent_id: str = "retail-refund-agent",
    ) -> Caller:  # fmt: skip
        """An agent with a key; `owner` owns it."""
        tenant = tenant_id or self.tenant_id
        issued = issue_key(
            self.pool,
            tenant,
            agent_id=agent_id,
            scopes=scopes,
            owner_operator_id=owner.operator_id if owner else None,
        )
        row = find_key_by_id(self.pool, tenant, issued.key_id)
        assert row is not None
        return Caller(
            row.tenant_id, row.key_id, row.principal_id, row.agent_id, frozenset(row.scopes), row.owner_operator_id
        )

    def guard(self, value: str = "120.00", caller: Caller | None = None, **params: Any) -> Any:
        """A decision on a new refund of `value` USD: to 150 ALLOW, to 1000 an approval, from 500 by two people."""
        return guarded(self.authority, caller or self.caller(), self.refund(value, **params))

    def refund(self, value: str, **params: Any) -> Operation:
        """The operation of a new refund of `value` USD."""
        number = next(_numbers)
        return build_operation(
            idempotency_key=f"refund:lge_{number}", agent_id="retail-refund-agent", action="refund.create",
            resource=f"refund/rf_{number}",
            params={
                "amount": {"value": value, "currency": "USD"}, "ledger_entry_id": f"lge_{number}", "refund_id": f"rf_{number}",
                "account_ref": f"acct_{number}",
                "risk": {"duplicate_refund": False, "stale_window": False, "suspicious_reason": False, "customer_attempts_24h": 1},
                **params,
            },
        )  # fmt: skip

    def approval(
        self, value: str = "200.00", owner: Actor | None = None, tenant_id: uuid.UUID | None = None
    ) -> uuid.UUID:
        """The id of a pending approval."""
        recorded = self.guard(value, self.caller(owner, tenant_id))
        assert recorded.status == "pending", recorded
        found: uuid.UUID = recorded.approval_id
        return found

    def publish(self) -> None:
        """Give every event its feed position."""
        while sequence_events(self.authority.pool):
            pass

    def digest(self, approval_id: Any) -> str:
        """What a person is shown with an approval; "unseen" for one that is not there."""
        found = self.sql("select digest from sentinel.approvals where approval_id = %s", approval_id)
        return str(found[0][0]) if found else "unseen"

    def order_digest(self, order_id: str) -> str:
        """What an analyst is shown with an order; "unseen" where nothing waits."""
        found = self.sql(
            "select a.digest from orders.reviews r join sentinel.approvals a using (tenant_id, approval_id)"
            " where r.order_id = %s", order_id)  # fmt: skip
        return str(found[0][0]) if found else "unseen"

    def approval_status(self, approval_id: uuid.UUID) -> str:
        return str(self.sql("select status from sentinel.approvals where approval_id = %s", approval_id)[0][0])


def _rows(done: psycopg.Cursor[Any]) -> list[Any]:
    return done.fetchall() if done.description else []


@pytest.fixture
def fixtures(database_url: str) -> Iterator[Fixtures]:
    """A set of fixtures with one tenant, public-demo."""
    pool = Pool(with_role(database_url, CONSOLE), size=4)
    settings = Settings(database_url=database_url, secret_keys=("a-secret-for-tests-0123456789abcdef",), pool_size=2)
    authority = build_authority(settings, ReloadablePolicies(policies_dir()))
    made = Fixtures(database_url, pool, authority, create_tenant(pool, "public-demo"), quick_hash(PASSWORD))
    yield made
    made.close()


@pytest.fixture
def two(fixtures: Fixtures) -> Iterator[Two]:
    """Two administrators. Whatever they did, the doctor finds nothing wrong afterwards."""
    from tests.integration.console.second_administrator import Two as made

    people = made(fixtures)
    yield people
    with connect(fixtures.url) as admin:
        assert set(broken_invariants(admin)) == people.arranged
