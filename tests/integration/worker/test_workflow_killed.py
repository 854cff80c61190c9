"""A worker killed with -9 before and after every step of the workflow: nothing twice, nothing stuck, the trails kept."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.support.fake_authority import FakeAuthority
from tests.support.ledger_fixtures import LedgerFixtures, new_row, worker_process
from tests.support.workflow_fixtures import BRANCHES, FEE, SECRETS, Shop
from worker.failpoints import step_place
from worker.images import LabelFileRecogniser, proof_image
from worker.refunds.settings import WorkerSettings
from worker.refunds.workflow.graph import StepName
from worker.settlement.registry import Systems

PICTURE = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR receipt"
WANTED = {
    "shop": "EXECUTED", "fee": "EXECUTED", "photo": "EXECUTED", "coupon": "EXECUTED", "approved": "EXECUTED",
    "asked": "APPROVAL_REQUIRED", "complaint": "APPROVAL_REQUIRED", "degraded": "APPROVAL_REQUIRED", "no": "DENIED",
}  # fmt: skip
SYSTEMS = {"shop": "simulated_refund", "coupon": "coupon"}
PAID = {name for name, status in WANTED.items() if status == "EXECUTED"}


@pytest.fixture
def labels(tmp_path: Path) -> Path:
    """A recogniser's file for a worker in another process."""
    file = tmp_path / "labels.json"
    label = {"kind": "fee_receipt", "amount": {"value": "9.00", "currency": "USD"}}
    file.write_text(json.dumps({proof_image("photo", PICTURE).sha256: label}))
    return file


@pytest.fixture
def shop(ledger_fixtures: LedgerFixtures, authority: FakeAuthority, labels: Path) -> Shop:
    """Rows of every fate, as far as they are when their customers and a person have just answered."""
    shop = Shop(ledger_fixtures, authority.url)
    shop.parts = {
        "systems": Systems.from_settings(WorkerSettings(api_key="key")),
        "recogniser": LabelFileRecogniser(labels),
    }
    shop.enter(FEE, "fee")
    shop.enter(FEE, "photo", value=900, order={"shipping_fee_minor": 900})
    picture = proof_image("photo", PICTURE)
    ledger_fixtures.ledger.add_image("photo", picture.sha256, picture.media_type, picture.content)
    shop.enter(BRANCHES["private/compensation"], "coupon")
    shop.flag(shop.enter(FEE, "approved"), FEE, "open_complaint")
    shop.run()
    authority.approve("refund:approved")
    shop.run()
    shop.answer("fee", "photo", "coupon", "approved")
    shop.enter(FEE, "asked")
    shop.flag(shop.enter(FEE, "complaint"), FEE, "open_complaint")
    shop.enter(BRANCHES["private/price_diff"], "degraded")
    shop.fixtures.add(new_row("shop"), new_row("no", 200_000))
    return shop


@pytest.mark.parametrize("step", StepName)
def test_killed_around_any_step_nothing_is_doubled_lost_or_stuck(
    shop: Shop, authority: FakeAuthority, labels: Path, step: StepName
) -> None:
    for passing in (1, 2):  # just before the step; and, by the next worker, just after it
        assert killed(shop, authority, labels, step, passing) == -signal.SIGKILL
        assert shop.fixtures.executions() <= len(PAID)
        shop.fixtures.make_due()
    shop.run(times=2)
    assert shop.fixtures.states() == WANTED
    paid_once(shop, authority)
    trails_are_kept(shop)
    assert shop.cards() == 5, "nobody is asked twice"


def killed(shop: Shop, authority: FakeAuthority, labels: Path, step: StepName, passing: int) -> int:
    """A worker process that dies there; its exit status."""
    with worker_process(
        ["--once"], database_url=shop.fixtures.url, authority_url=authority.url, WORKER_LANES="1",
        SENTINEL_FAILPOINT=f"{step_place(step)}:kill:{passing}", SENTINEL_ALLOW_FAILPOINTS="1",
        CONFIRM_SECRETS=",".join(SECRETS), WORKER_NOTIFIER="log", WORKER_RECOGNISER=f"labels:{labels}",
        SENTINEL_TENANT_ID=str(shop.fixtures.tenant_id),
    ) as process:  # fmt: skip
        _, err = process.communicate(timeout=120)
        assert "Traceback" not in err, err
    return process.returncode


def paid_once(shop: Shop, authority: FakeAuthority) -> None:
    """One execution per paid row, by its system, under the start that the authority recorded; all told."""
    rows = shop.fixtures.all(
        "select ledger_entry_id, system, start_id::text, start_event_id::text from refunds.executions"
    )
    assert sorted((name, system) for name, system, _, _ in rows) == sorted(
        (name, SYSTEMS.get(name, "private_refund")) for name in PAID
    )
    for name, _, start_id, start_event_id in rows:
        operation = authority.operations[f"refund:{name}"]
        found = (operation.start_id, operation.start_event_id, operation.outcome)
        assert found == (start_id, start_event_id, "success")
    assert {key.removeprefix("refund:") for key, one in authority.operations.items() if one.start_id} == PAID
    assert shop.fixtures.one("select count(*) from refunds.outbox where acknowledged_at is null") == 0


def trails_are_kept(shop: Shop) -> None:
    """Every row's last run says where it ended, and no run of a row is missing that ended with an event."""
    last = {
        "asked": "confirm_card", "complaint": "ask_authority", "degraded": "ask_authority", "no": "ask_authority"
    }  # fmt: skip
    for name in WANTED:
        assert shop.steps(name)[-1]["step"] == last.get(name, "confirm"), name
        assert shop.steps(name)[0]["step"] == "kill_switch"
    without = shop.fixtures.one(
        "select count(*) from refunds.ledger_events e where e.event in ('executed', 'denied', 'approval_required',"
        " 'awaiting_customer', 'gave_up') and not exists (select from refunds.step_trails t"
        " where t.ledger_entry_id = e.ledger_entry_id and t.claim_epoch = e.claim_epoch)"
    )
    assert without == 0
