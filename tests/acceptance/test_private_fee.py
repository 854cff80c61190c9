"""The first scenario end to end, with everything real: a private shipping fee within seven days, confirmed on a phone."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sentinel.authority.actor import Actor
from sentinel.authority.gate_reports import record_gate_report
from sentinel.store.database import CONSOLE, Pool, with_role
from tests.acceptance.ledgers import Shop, broken_invariants_at
from tests.integration.confirm.test_confirm_in_browser import browser, phone  # noqa: F401 - a fixture
from tests.support.fixtures import add_tenant, unique
from tests.support.logins import public_urls
from tests.support.ports import free_port, listens
from tests.support.served_programs import SECRET, Served, clean_env, end, eventually, module, run_warm_command
from tests.support.switch_fixtures import BOOK, FEE, MASTER, passing_report

pytestmark = [pytest.mark.browser, pytest.mark.slow]
ROW = "lge_fee"


@pytest.fixture
def console(served: Served, tmp_path: Path) -> Iterator[str]:
    """`python -m ops_console --only public` on the authority's database, without a login of the console: its address."""
    port = free_port()
    env = clean_env(
        **public_urls(served.database_url), CONFIRM_SECRETS=SECRET, SENTINEL_INSECURE_COOKIES="1",
        SENTINEL_REQUIRE_SECOND_FACTOR="nobody",
    )  # fmt: skip
    with (tmp_path / "console.log").open("wb") as log:
        process = subprocess.Popen(
            module("ops_console", "--only", "public", "--board-port", str(port)), env=env, stdout=log, stderr=log
        )
    try:
        assert eventually(lambda: listens(port), within=30), (tmp_path / "console.log").read_text()
        yield f"http://127.0.0.1:{port}"
    finally:
        end(process)


@pytest.fixture
def shop(served: Served) -> Shop:
    """A tenant whose fee scenario an administrator has turned on, after a passing report was recorded."""
    label = unique("fee").replace("_", "-")
    tenant_id, key, operators = add_tenant(served.database_url, label)
    approver = Actor(tenant_id, operators["approver"], f"approver@{label}.example", "approver")
    report_passing(served, approver)
    for name, percent in ((MASTER, "100"), (FEE, "5"), (FEE, "100")):
        flip = ("switches", "on", name, "--canary", percent, "--reason", "ready", "--as", f"admin@{label}.example")
        done = served.cli(*flip, "--tenant", str(tenant_id))
        assert done.returncode == 0, done.stderr
    return Shop(served, tenant_id, key)


def report_passing(served: Served, approver: Actor) -> None:
    """What a passed launch gate leaves behind, for exactly the policy in force."""
    with contextlib.closing(Pool(with_role(served.database_url, CONSOLE), size=1)) as pool:
        with pool.connection() as connection:
            found = connection.execute(
                b"select policy_digest from sentinel.policies_in_force where policy_id = 'small-refund'"
            ).fetchone()
        assert found is not None
        record_gate_report(pool, approver, BOOK, passing_report(found[0]))


def send_line(shop: Shop, command: str, line: dict[str, Any]) -> None:
    """`worker facts` or `worker enqueue` with one line."""
    env = {name: value for name, value in shop.env.items() if name.startswith(("SENTINEL", "WORKER"))}
    done = run_warm_command(command, "-", program="worker.cli", stdin=json.dumps(line), **env)
    assert done.returncode == 0, done.stdout + done.stderr


def enter(shop: Shop) -> None:
    """A fee of 4.90 that was charged three days ago, and asked back."""
    days_ago = lambda days: (datetime.now(UTC) - timedelta(days=days)).isoformat()  # noqa: E731
    send_line(shop, "facts", {
        "kind": "order", "channel": "private", "order_ref": "ord_fee", "account_ref": "acct_fee", "ordered_at": days_ago(5),
        "delivered_at": days_ago(3), "paid": "89.00", "currency": "USD", "shipping_fee": "4.90",
    })  # fmt: skip
    send_line(shop, "enqueue", {
        "ledger_entry_id": ROW, "refund_id": "rf_fee", "channel": "private", "scenario": "fee", "account_ref": "acct_fee",
        "order_ref": "ord_fee", "amount": {"value": "4.90", "currency": "USD"}, "language": "en",
        "contact": "somebody@shop.example", "reason": "It came a week late, please return the shipping fee.",
    })  # fmt: skip


def test_a_private_fee_is_confirmed_on_a_phone_and_executed_exactly_once(
    shop: Shop,
    console: str,
    browser: Any,  # noqa: F811 - the fixture
    tmp_path: Path,
) -> None:
    env = {"CONFIRM_SECRETS": SECRET, "CONFIRM_BASE_URL": console, "WORKER_OUTBOX_DIR": str(tmp_path / "out")}
    enter(shop)
    assert shop.work("--once", **env)[0] == 0
    assert shop.all(STANDS) == [("APPROVAL_REQUIRED", "customer", "awaiting_customer")]
    assert shop.all(PAID) == []
    (message,) = map(json.loads, (tmp_path / "out" / "confirmations.jsonl").read_text().splitlines())
    assert message["to"] == "somebody@shop.example" and message["link"].startswith(f"{console}/confirm/")
    with phone(browser, console) as page:
        page.goto(message["link"])
        assert page.locator("body").inner_text().count("4.90") >= 1
        page.get_by_role("button", name=re.compile(r"^Yes, refund .*\b4\.90\b")).tap(timeout=60_000)
        page.get_by_role("heading", name="Thank you, that is confirmed").wait_for()
        assert shop.all(PAID) == [], "the page itself pays nothing"
        page.goto(message["link"])
        page.get_by_role("heading", name="You have already confirmed").wait_for()
    for _ in range(2):
        assert shop.work("--once", **env)[0] == 0
    assert shop.all(STANDS)[0][0] == "EXECUTED"
    assert shop.all(PAID) == [(ROW, 490, "USD", "private_refund")]
    assert shop.faults() == []
    assert broken_invariants_at(shop.served.database_url) == []
    explained(shop)


STANDS = "select status, waiting_for, reason_code from refunds.ledger_entries where tenant_id = %s"
PAID = "select ledger_entry_id, amount_minor, currency, system from refunds.executions where tenant_id = %s"
STRAIGHT = (
    "kill_switch", "check_params", "gate_common", "query_order", "check_order", "route_mode_scenario", "scenario_validate", "limit_check",
    "critic_check", "confirm_card", "ask_authority", "execute_by_system", "confirm",
)  # fmt: skip


def explained(shop: Shop) -> None:
    """`worker workflow explain` tells both runs: to the customer, and to the execution."""
    env = {name: value for name, value in shop.env.items() if name.startswith(("SENTINEL", "WORKER"))}
    shown = run_warm_command("workflow", "explain", ROW, program="worker.cli", **env)
    assert shown.returncode == 0, shown.stderr
    assert all(step in shown.stdout for step in STRAIGHT) and "somebody@shop.example" not in shown.stdout
    life = json.loads(run_warm_command("workflow", "explain", ROW, "--json", program="worker.cli", **env).stdout)[
        "life"
    ]
    runs = [[step["step"] for step in event["steps"]] for event in life if event["kind"] == "steps"]
    assert runs == [list(STRAIGHT[: STRAIGHT.index("confirm_card") + 1]), list(STRAIGHT)]
    events = [event["event"] for event in life if event["kind"] == "event"]
    assert [event for event in events if event != "claimed"] == ["awaiting_customer", "allowed", "executed"]
