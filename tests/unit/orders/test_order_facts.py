"""Derived facts are bounded by when the order came; what its source always sends and is not there goes to a person."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from sentinel.core.money import Money
from sentinel.platform.resources import policies_dir
from sentinel.policy.errors import PolicyError
from worker.orders.order import Band, Order, Score, as_received, facts_of, missing_facts, order_of
from worker.orders.replay_cli import sources
from worker.orders.scoring import raised_for_missing_facts
from worker.orders.sources import FILE_NAME, Sources
from worker.orders.try_payload import try_payload

CAME = datetime(2026, 11, 20, 12, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
ORDER = Order("demo", "1", Money(40000, "USD"), account_ref="a")


@pytest.mark.parametrize(
    ("made", "placed", "told", "age"),
    [
        (CAME - HOUR, None, None, 0),
        (CAME - HOUR, CAME + 3650 * DAY, None, 0),
        (CAME - HOUR, CAME - HOUR / 2, None, 0),
        (CAME - HOUR, None, 400, 0),
        (CAME - 400 * DAY, None, None, 400),
        (CAME - 400 * DAY, None, 0, 0),
        (CAME - 400 * DAY, CAME - 399 * DAY, None, 1),
        (CAME - 10 * DAY, CAME + 400 * DAY, None, 10),
        (CAME + DAY, None, None, 0),
        (CAME + DAY, CAME + 30 * DAY, None, 0),
        (None, None, 7, 7),
        (None, CAME, None, None),
    ],
)
def test_an_account_is_never_older_than_it_was_when_the_order_came(
    made: datetime | None, placed: datetime | None, told: int | None, age: int | None
) -> None:
    order = replace(ORDER, account_created_at=made, placed_at=placed, account_age_days=told)
    assert as_received(order, CAME).account_age_days == age
    # The same for whoever takes it up after a crash, from what was kept.
    kept = order_of("demo", "1", order.amount, "a", json.loads(json.dumps(facts_of(order))))
    assert as_received(kept, CAME).account_age_days == age


def test_what_is_always_sent_and_missing_raises_a_low_band_and_never_lowers_a_high_one() -> None:
    assert missing_facts(ORDER, ("account_ref", "email", "items", "billing_country")) == (
        "email",
        "items",
        "billing_country",
    )
    assert missing_facts(replace(ORDER, account_age_days=0), ("account_age_days",)) == ()
    for band, after in ((Band.LOW, Band.MEDIUM), (Band.MEDIUM, Band.MEDIUM), (Band.HIGH, Band.HIGH)):
        found = raised_for_missing_facts(Score(band), ("email",))
        assert (found.band, found.signals[0].code) == (after, "facts_missing")
        assert raised_for_missing_facts(Score(band), ()).band is band


@pytest.mark.parametrize(
    ("always", "says"),
    [
        ("[colour]", "unknown value"),
        ("[failed_payments]", "neither fields nor lookups"),
        ("[account_age_days]", "neither fields nor lookups"),
        ("[order_id]", "order_id"),
        ("email", "list"),
    ],
)
def test_a_source_cannot_promise_what_nothing_reads(tmp_path: Path, always: str, says: str) -> None:
    path = tmp_path / FILE_NAME
    path.write_text(
        "sources:\n  one:\n    scheme: hex\n    header: X-S\n    secret: ONE_SECRET\n"
        f"    always: {always}\n    fields: {{amount: total, email: mail}}\n"
    )
    with pytest.raises(PolicyError) as refused:
        Sources.load(path, {})
    assert says in str(refused.value) and refused.value.line == 6


def test_every_shipped_source_says_what_it_always_sends() -> None:
    assert [source.name for source in Sources.load(policies_dir() / FILE_NAME, {}).all if not source.always] == []


def tried(tmp_path: Path, order: dict[str, Any], source: str = "demo") -> Any:
    """What `sources --try` says of an order."""
    file = tmp_path / "payload.json"
    file.write_text(json.dumps({"order": {"id": "1", "amount": {"value": "80.00", "currency": "EUR"}, **order}}))
    done = CliRunner().invoke(sources, ["--try", str(file), "--source", source, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)["tried"][0]


def test_a_payload_with_other_names_is_shown_with_what_nobody_reads_and_the_lane_that_follows(tmp_path: Path) -> None:
    """The finding: billed in DE, shipped to NG, and fulfilled, because the source maps other names."""
    addresses = {"billing_address": {"country": "DE"}, "shipping_address": {"country": "NG"}}
    found = tried(
        tmp_path, {"email": "a@b.example", **addresses, "items": [{"sku": "t", "price": "1"}, {"price": "2"}]}
    )
    assert found["unread"] == [
        "order.billing_address.country", "order.shipping_address.country", "order.items.*.price",
    ]  # fmt: skip
    assert [(one["fact"], one["path"]) for one in found["read"]] == [
        ("order_id", "order.id"), ("amount", "order.amount.value"), ("amount", "order.amount.currency"),
        ("email", "order.email"), ("item_sku", "order.items.0.sku"),
    ]  # fmt: skip
    assert (found["missing"], found["band"], found["lane"], found["reason"]) == (
        ["billing_country"], "medium", "medium", "facts_missing",
    )  # fmt: skip
    read = tried(tmp_path, {"billing_country": "DE", "shipping_country": "NG"})
    assert (read["unread"], read["missing"], read["lane"], read["reason"]) == ([], [], "medium", "needs_analyst")
    fits = tried(tmp_path, {"billing_country": "DE", "shipping_country": "DE", "account_age_days": 400})
    assert (fits["lane"], fits["reason"]) == ("low", "low_risk")
    assert tried(tmp_path, {"amount": "much"})["error"] is not None


def test_a_fact_that_the_intake_looks_up_is_not_called_missing(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    path.write_text(
        "sources:\n  one:\n    scheme: hex\n    header: X-S\n    secret: ONE_SECRET\n    always: [email, account_age_days]\n"
        "    fields: {order_id: id, amount: total, currency: currency, email: mail, account_ref: account}\n"
        '    lookups: [{url: "https://accounts.example.com/{account_ref}", fields: {account_age_days: age}}]\n'
    )
    (source,) = Sources.load(path, {"ONE_SECRET": "s" * 16}).all
    payload = {"id": "1", "total": "80.00", "currency": "EUR", "mail": "a@b.example", "account": "a-1"}
    found = try_payload(policies_dir(), source, payload)
    assert (found.error, found.missing, found.to_look_up, found.band) == (None, (), ("account_age_days",), "low")


def test_what_is_tried_is_shown_to_people_of_every_source_and_a_file_that_is_none_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "payload.json"
    file.write_text(
        '{"id": 1, "total_price": "9.50", "currency": "EUR", "note": "\\u001b[31mred",'
        ' "\\u001b]0;owned\\u0007\\u001b[2J": 1, "\\u202edesufer": 1, "\\u009b2J": 1}'
    )
    done = CliRunner().invoke(sources, ["--try", str(file)])
    assert done.exit_code == 0 and "demo: refused" in done.stdout and "shopify: band medium" in done.stdout
    assert "not read:" in done.stdout and "  [U+001B]]0;owned[U+0007][U+001B][2J\n" in done.stdout
    assert all(sign.isprintable() or sign == "\n" for sign in done.stdout), (
        "nothing of it reaches the terminal as a command"
    )
    file.write_text('{"a": 1, "a": 2}')
    assert CliRunner().invoke(sources, ["--try", str(file)]).exit_code == 2
    assert CliRunner().invoke(sources, ["--source", "nobody"]).exit_code == 2
