"""A filled console to look at: one tenant with something on every page, and the console as a real process.

Shared by the tests in a browser and by the measurement of first paint.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import urllib3

from sentinel.authority.actor import Actor
from sentinel.authority.app import build_authority
from sentinel.authority.keys import issue_key
from sentinel.authority.policies import declare_policies
from sentinel.authority.settings import Settings
from sentinel.authority.tenants import create_tenant
from sentinel.platform.resources import policies_dir
from sentinel.policy.library import ReloadablePolicies
from sentinel.store.database import CONSOLE, Pool, with_role
from tests.integration.console.conftest import Fixtures
from tests.integration.console.test_console_refunds import add_worker
from tests.integration.console.test_page_in_doubt import doubted
from tests.integration.console.test_page_ledger import add_life
from tests.integration.console.test_page_policies import FEE, record
from tests.support.confirm_fixtures import SECRETS, Cards
from tests.support.fixtures import PASSWORD, quick_hash
from tests.support.logins import console_urls
from tests.support.orders_console_fixtures import held, queued
from tests.support.ports import free_port
from tests.support.served_programs import SECRET, clean_env, end, eventually, module, request

ROLES = ("viewer", "approver", "admin")
HOSTILE = "Pay me twice <b>now</b> or ' else"


@dataclass
class Place:
    """A console that runs, its fixtures, and where the things are that have a page of their own."""

    fixtures: Fixtures
    url: str
    board: str
    cards: Cards
    paths: dict[str, str] = field(default_factory=dict)

    def operator(self, role: str = "approver") -> Actor:
        """Somebody new."""
        return self.fixtures.operator(f"{role}-{uuid.uuid4().hex[:8]}", role)

    def leave_one_administrator(self) -> None:
        """Only the newest administrator stays one: what gives somebody power does not wait for a second."""
        self.fixtures.sql("update sentinel.operators set role = 'approver' where role = 'admin' and operator_id <>"
                       " (select max(operator_id::text)::uuid from sentinel.operators where role = 'admin')")  # fmt: skip


@contextlib.contextmanager
def filled_place(database_url: str, **env: str) -> Iterator[Place]:
    """A place on a fresh, migrated database."""
    pool = Pool(with_role(database_url, CONSOLE), size=4)
    settings = Settings(database_url=database_url, secret_keys=(SECRET,), pool_size=4)
    authority = build_authority(settings, ReloadablePolicies(policies_dir()))
    cards = Cards(database_url)
    try:
        tenant_id = create_tenant(pool, "public-demo")
        fixtures = Fixtures(database_url, pool, authority, tenant_id, quick_hash(PASSWORD))
        declare_policies(authority)
        with running_console(database_url, **env) as (url, board):
            place = Place(fixtures, url, board, cards)
            fill(place)
            yield place
            fixtures.close()
    finally:
        cards.close()
        pool.close()
        authority.pool.close()


@contextlib.contextmanager
def running_console(database_url: str, **env: str) -> Iterator[tuple[str, str]]:
    """`python -m ops_console` on free ports; the addresses of its two faces, operators' and public."""
    port, board, folder = free_port(), free_port(), Path(tempfile.mkdtemp(prefix="sentinel-console-"))
    log = folder / "console.log"
    settings = clean_env(
        **console_urls(database_url), SENTINEL_INSECURE_COOKIES="true", CONFIRM_SECRETS=",".join(SECRETS),
        SENTINEL_PUBLIC_AGENTS="retail-refund-agent=refund:refunds,*", SENTINEL_LOG_LEVEL="warning",
        SENTINEL_CONSOLE_THREADS="16", **{"SENTINEL_REQUIRE_SECOND_FACTOR": "nobody", **env},
    )  # fmt: skip
    with log.open("wb") as output:
        process = subprocess.Popen(
            module("ops_console", "--port", str(port), "--board-port", str(board), "--graceful-seconds", "1"), env=settings, stdout=output,
            stderr=output, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def ready() -> bool:
        if process.poll() is not None:
            raise AssertionError(f"the console ended: {log.read_text()[-2000:]}")
        with contextlib.suppress(urllib3.exceptions.HTTPError, OSError):
            return all(request("GET", f"http://127.0.0.1:{one}/readyz").status == 200 for one in (port, board))
        return False

    try:
        assert eventually(ready, within=60), log.read_text()[-2000:]
        yield f"http://127.0.0.1:{port}", f"http://127.0.0.1:{board}"
    finally:
        end(process)
        shutil.rmtree(folder, ignore_errors=True)


def fill(place: Place) -> None:
    """Something for every page: people, decisions of each kind, entries, orders in each lane, a halt, a doubt, a key."""
    fixtures, paths = place.fixtures, place.paths
    people = {role: fixtures.operator(role, role) for role in ROLES}
    issue_key(
        fixtures.pool, fixtures.tenant_id, agent_id="retail-refund-agent", label="nightly refunds",
        owner_operator_id=people["viewer"].operator_id,
    )  # fmt: skip
    entry = add_life(fixtures)
    add_entries(fixtures)
    add_worker(fixtures)
    for value in ("12.50", "75.00", "120.00", "2000.00"):
        fixtures.guard(value)
    hostile = fixtures.guard("300.00", reason=HOSTILE).approval_id
    fixtures.approval("200.00")
    fixtures.approval("640.00")
    doubt = doubted(fixtures, "140.00", 3, "error_reported")
    order = queued(fixtures)
    held(fixtures)
    record(fixtures)
    fixtures.sql(
        "insert into sentinel.halts (tenant_id, halt_id, scope, target, level, reason, set_by, set_at)"
        " values (%s, gen_random_uuid(), 'agent', 'an-agent-that-misbehaved', 'kill', 'refunds nobody asked for', %s, now())",
        fixtures.tenant_id, people["approver"].email,
    )  # fmt: skip
    fixtures.sql(
        "insert into sentinel.gauge_samples (tenant_id, taken_at, oldest_waiting_seconds, in_doubt, halts, worker_lag_seconds)"
        " select %s, now() - make_interval(secs => 20 * n), 60 * (170 - n) %% 2700, (n / 40) %% 3, (n < 90)::integer,"
        " greatest(0, 9 * sin(n / 7.0)) from generate_series(1, 170) n where n not between 100 and 110",
        fixtures.tenant_id,
    )  # fmt: skip
    fixtures.sql(
        "insert into orders.alerts (tenant_id, kind, source, order_id, summary, attempts, last_error)"
        " values (%s, 'order_held', 'demo', %s, 'held', 3, 'timeout')", fixtures.tenant_id, order,
    )  # fmt: skip
    place.cards.waiting("card-1", value=1250, order="ORD-77")
    fixtures.publish()
    proof = request("GET", f"{place.board}/ops/api/live/feed").json["events"][0]["proof_id"]
    paths |= {
        "sign in": "/ops/sign-in", "overview": "/ops", "approvals": "/ops/approvals", "decided": "/ops/approvals?status=decided",
        "approval": f"/ops/approvals/{hostile}", "batch": f"/ops/approvals/batch?id={hostile}", "ledger": "/ops/ledger",
        "ledger entry": f"/ops/ledger/{entry}", "orders": "/ops/orders", "order": f"/ops/orders/demo/{order}",
        "policies": "/ops/policies", "policy": "/ops/policies/retail-refund", "cases": "/ops/policies/retail-refund/cases",
        "switch": f"/ops/policies/switches/{FEE}", "halts": "/ops/halts", "in doubt": "/ops/in-doubt",
        "doubt": f"/ops/in-doubt/{doubt}", "events": "/ops/events", "keys": "/ops/keys", "operators": "/ops/operators",
        "operator": f"/ops/operators/{people['viewer'].operator_id}", "account": "/ops/account", "prove": "/ops/account/prove",
        "nothing": "/ops/nothing-here", "live": "/live", "widget": "/live/widget", "verify": "/verify/",
        "proof": f"/verify/{proof}", "card": place.cards.link("card-1"),
    }  # fmt: skip


def add_entries(fixtures: Fixtures) -> None:
    """Sixty entries, so that the list has a second page."""
    fixtures.sql(
        "set session_replication_role = replica; "
        "insert into refunds.ledger_entries (tenant_id, ledger_entry_id, refund_id, amount_minor, currency, channel, scenario,"
        " status, decision, reason_code, last_error, account_ref, order_ref, budget_part, reason)"
        f" select '{fixtures.tenant_id}', 'entry_' || n, 'refund_' || n, n * 1000, (array['USD','EUR','JPY'])[1 + n % 3],"
        " 'retail', 'standard', (array['NEW','DENIED','EXECUTED','ERROR'])[1 + n % 4],"
        " (array[null,'DENY','ALLOW','DENY'])[1 + n % 4], (array[null,'over_limit','within_policy_limit','stale_window'])[1 + n % 4],"
        " case when n % 4 = 3 then 'the bank did not answer' end, 'acct-secret', 'order-secret', case when n % 4 = 2 then 'executed' end, 'my words' from generate_series(1, 60) n"
    )  # fmt: skip
