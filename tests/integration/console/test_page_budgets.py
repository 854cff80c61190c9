"""An order's budget on the pages: what was paid, where each part of it stands, and what no person should miss."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import pytest

from tests.support.orders_console_fixtures import approval_of, queued

SET = "update refunds.order_budgets set {} where order_ref = %s and source = 'demo'"


def shown(page: Any) -> dict[str, str]:
    """The facts of the section about the budget, and its warnings under "said"; empty where there is no such section."""
    assert page.status_code == 200, page.text
    section = page.text.partition('<section aria-labelledby="budget">')[2].partition("</section>")[0]
    plain = [
        " ".join(unescape(re.sub(r"<[^>]+>", " ", part)).split()) for part in re.findall(r"<d[td]>.*?</d[td]>", section)
    ]
    said = " ".join(unescape(" ".join(re.findall(r'<p class="said warning">(.*?)</p>', section))).split())
    return dict(zip(plain[::2], plain[1::2], strict=True)) | ({"said": said} if said else {})


def refunded(fixtures: Any, order_id: str = "o-1") -> str:
    """An order of 200.00 whose refund an analyst filed: the address of its row."""
    queued(fixtures, order_id)
    assert fixtures.person(f"ann-{order_id}").analyst(order_id, "refund").status_code == 200
    return f"/ops/ledger/order:demo:{order_id}"


def test_an_orders_page_and_its_refunds_show_the_row_and_its_parts(fixtures: Any) -> None:
    queued(fixtures, "o-0")
    vic = fixtures.browser("vic", "viewer")
    assert shown(vic.get("/ops/orders/demo/o-0")) == {}, "no refund of it was asked for"
    row = refunded(fixtures)
    nothing = {
        "Executed": "0.00 USD",
        "Handled by a person": "0.00 USD",
        "In doubt": "0.00 USD",
        "Reserved": "0.00 USD",
    }
    assert shown(vic.get("/ops/orders/demo/o-1")) == {
        "Paid for the order": "200.00 USD", **nothing, "Left": "200.00 USD"
    }  # fmt: skip
    # An order of the same id from another source is another order.
    fixtures.sql("insert into refunds.orders (tenant_id, source, order_ref, ordered_at, paid_minor, currency)"
              " values (%s, 'other', 'o-1', now(), 999, 'EUR')", fixtures.tenant_id)  # fmt: skip
    fixtures.sql(
        SET.format("executed_minor = 5000, handled_minor = 2050, in_doubt_minor = 1000, reserved_minor = 6000"), "o-1"
    )
    wanted = {
        "Paid for the order": "200.00 USD", "Executed": "50.00 USD", "Handled by a person": "20.50 USD", "In doubt": "10.00 USD",
        "Reserved": "60.00 USD", "Left": "59.50 USD",
    }  # fmt: skip
    assert shown(vic.get("/ops/orders/demo/o-1")) == wanted
    assert shown(vic.get(row)) == wanted


def test_what_a_bank_sent_back_is_said(fixtures: Any) -> None:
    row, vic = refunded(fixtures), fixtures.browser("vic", "viewer")
    fixtures.sql("set session_replication_role = replica; update refunds.ledger_entries set budget_part = 'returned'")
    said = (
        "200.00 USD were sent back by a bank: the customer did not receive them, and they are not counted as refunded."
    )
    for page in ("/ops/orders/demo/o-1", row):
        found = shown(vic.get(page))
        assert (found["said"], found["Left"]) == (said, "200.00 USD"), page


def test_an_approvals_card_shows_what_is_left_of_the_order_that_its_refund_is_of(fixtures: Any) -> None:
    refunded(fixtures)
    approval_id = fixtures.approval("200.00")
    page, ann = f"/ops/approvals/{approval_id}", fixtures.browser("ann", "approver")
    assert shown(ann.get(page)) == {}, "no row of the ledger waits for it"
    fixtures.sql(
        f"set session_replication_role = replica; update refunds.ledger_entries set approval_id = '{approval_id}'"
    )
    fixtures.sql(SET.format("executed_minor = 15000, handled_minor = 5000"), "o-1")
    found = shown(ann.get(page))
    assert "Approving overrides" in ann.get(page).text
    fixtures.sql("update sentinel.approvals set offers_approve = false")
    assert "Approving overrides" not in ann.get(page).text, "what is not offered is not explained"
    assert (found["Paid for the order"], found["Handled by a person"], found["Left"]) == (
        "200.00 USD",
        "50.00 USD",
        "0.00 USD",
    )


def test_the_card_of_a_queued_order_shows_what_was_refunded_of_it_meanwhile(fixtures: Any) -> None:
    """An analyst decides a queued order on its card alone, and should not have a refunded order shipped unawares."""
    approval_id = approval_of(fixtures, queued(fixtures, "o-1"))
    page, ann = f"/ops/approvals/{approval_id}", fixtures.browser("ann", "approver")
    assert shown(ann.get(page)) == {}, "no refund of it was asked for"
    fixtures.sql(
        "insert into refunds.orders (tenant_id, channel, source, order_ref, ordered_at, paid_minor, currency)"
        " values (%s, 'retail', 'demo', 'o-1', now(), 20000, 'USD')", fixtures.tenant_id,
    )  # fmt: skip
    fixtures.sql(
        "insert into refunds.ledger_entries (tenant_id, ledger_entry_id, refund_id, agent_id, action, amount_minor, currency, channel, scenario,"
        " account_ref, source, order_ref) values (%s, 'lge-1', 'rf-1', 'retail-refund-agent', 'refund.create', 20000, 'USD', 'retail',"
        " 'standard', 'demo:acct', 'demo', 'o-1')", fixtures.tenant_id,
    )  # fmt: skip
    fixtures.sql(SET.format("executed_minor = 20000"), "o-1")
    found = shown(ann.get(page))
    assert (found["Executed"], found["Left"]) == ("200.00 USD", "0.00 USD")
    fixtures.sql("update sentinel.approvals set offers_approve = false")
    text = ann.get(page).text
    assert "Hold it, or refund it" in text and "record that a person handled it" not in text


@pytest.mark.parametrize(
    ("standing", "wanted"),
    [
        ("handled_minor = 25000, beyond_minor = 5000", {
            "Left": "0.00 USD",
            "said": "50.00 USD more than was paid: "
            "a person handled more than was left, a refund above what was left is in doubt or was paid after all, or the shop corrected the amount paid.",
        }),
        ("uncounted_entries = 2", {"said": "Refunds in another currency, which these sums do not include: 2."}),
        ("paid_minor = null", {"Paid for the order": "not known", "Left": "not known"}),
    ],
)  # fmt: skip
def test_what_a_person_must_not_miss_is_said(fixtures: Any, standing: str, wanted: dict[str, str]) -> None:
    row, vic = refunded(fixtures), fixtures.browser("vic", "viewer")
    fixtures.sql(SET.format(standing), "o-1")
    for page in ("/ops/orders/demo/o-1", row):
        found = shown(vic.get(page))
        assert {name: found.get(name) for name in wanted} == wanted, page
