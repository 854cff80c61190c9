"""Payloads as senders write them become orders; what is missing is unknown, what is wrong is named by its path."""

from __future__ import annotations

import copy
import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.core.errors import InvalidInput
from sentinel.core.money import Money
from sentinel.platform.http.bodies import read_object
from sentinel.platform.resources import policies_dir
from worker.orders.intake import _faults_said
from worker.orders.order import MAX_ITEMS, Item, Order, as_received, facts_of, order_id
from worker.orders.sources import FILE_NAME, OrderSource, Scheme, Signing, Sources

SOURCES = Sources.load(policies_dir() / FILE_NAME, {})

# An order in Shopify's field names and forms: ids of 18 digits, amounts as text, `…_set` beside them, nulls in many places.
SHOPIFY: dict[str, Any] = {
    "id": 820982911946154508,
    "admin_graphql_api_id": "gid://shopify/Order/820982911946154508",
    "app_id": None,
    "browser_ip": None,
    "buyer_accepts_marketing": True,
    "contact_email": "jon@example.com",
    "created_at": "2026-11-20T11:00:00-05:00",
    "processed_at": "2026-11-20T11:00:00-05:00",
    "currency": "USD",
    "presentment_currency": "USD",
    "current_total_price": "398.00",
    "current_total_price_set": {"shop_money": {"amount": "398.00", "currency_code": "USD"},
                                "presentment_money": {"amount": "398.00", "currency_code": "USD"}},
    "total_price": "408.00",
    "email": "jon@example.com",
    "financial_status": "paid",
    "name": "#9999",
    "note": None,
    "note_attributes": [],
    "order_number": 1234,
    "total_weight": 0,
    "tax_lines": [{"price": "0.00", "rate": 0.06, "title": "State tax"}],
    "billing_address": {"first_name": "A", "address1": "1 Street", "zip": "K2P0V6", "country": "Canada", "country_code": "CA",
                        "latitude": 45.41634, "longitude": None},
    "shipping_address": {"first_name": "A", "address1": "2 Street", "country": "United States", "country_code": "US"},
    "customer": {"id": 115310627314723954, "email": "jon@example.com", "created_at": "2026-11-18T11:00:00-05:00",
                 "default_address": {"country_code": "US"}, "tags": "", "verified_email": True},
    "line_items": [
        {"id": 866550311766439020, "title": "IPod Nano - 8GB", "name": "IPod Nano - 8GB - black", "sku": "IPOD2008BLACK", "quantity": 1,
         "price": "199.00", "grams": 567, "gift_card": False, "properties": []},
        {"id": 141249953214522974, "title": "IPod Nano - 8GB", "sku": None, "quantity": 1, "price": "199.00"},
    ],
    "shipping_lines": [{"id": 271878346596884015, "title": "Generic Shipping", "code": "EXPRESS", "price": "10.00", "source": "shopify"}],
    "refunds": [], "discount_codes": [], "fulfillments": [],
}  # fmt: skip

CASE: dict[str, Any] = {
    "order": {
        "id": "ord-1001", "total": {"value": "49.90", "currency": "EUR"}, "email": "someone@example.com",
        "customer": {"id": "c-7", "age_days": 0}, "billing": {"country": "de"}, "shipping": {"country": "AT", "speed": "next_day"},
        "items": [{"sku": "s", "title": "t", "quantity": 2}], "payment": {"failed_attempts": 0}, "created_at": "2026-11-20T11:00:00Z",
    }
}  # fmt: skip


def source(name: str) -> OrderSource:
    found = SOURCES.find(name)
    assert found is not None
    return found


def read(name: str, payload: Any) -> Order:
    """As it comes over the wire: strict JSON first."""
    return source(name).to_order(read_object(json.dumps(payload).encode()))


def test_shopifys_order_payload_works_as_it_is() -> None:
    order = read("shopify", SHOPIFY)
    assert (order.source, order.order_id) == ("shopify", "820982911946154508")
    assert order.amount == Money(39800, "USD")
    assert (order.email, order.account_ref, order.account_age_days) == ("jon@example.com", "115310627314723954", None)
    assert as_received(order, datetime(2026, 11, 20, 17, tzinfo=UTC)).account_age_days == 2
    assert (order.billing_country, order.shipping_country, order.shipping_speed) == ("CA", "US", "EXPRESS")
    assert order.items == (Item("IPOD2008BLACK", "IPod Nano - 8GB", 1), Item(None, "IPod Nano - 8GB", 1))
    assert order.failed_payments is None, "Shopify does not say: unknown, not zero"
    assert order.placed_at == datetime(2026, 11, 20, 11, tzinfo=timezone(timedelta(hours=-5)))


def test_a_guest_at_shopify_is_unknown_and_not_new() -> None:
    order = read(
        "shopify", SHOPIFY | {"customer": None, "shipping_address": None, "shipping_lines": [], "line_items": []}
    )
    assert (order.account_ref, order.account_age_days, order.shipping_country, order.shipping_speed) == (None,) * 4
    assert order.items == ()


@pytest.mark.parametrize("name", ["demo", "shop", "standard"])
def test_the_fraud_review_cases_payload_works_as_it_is(name: str) -> None:
    order = read(name, CASE)
    assert (order.source, order.order_id, order.amount) == (name, "ord-1001", Money(4990, "EUR"))
    assert (order.account_ref, order.account_age_days, order.failed_payments) == ("c-7", 0, 0)
    assert (order.billing_country, order.shipping_country, order.shipping_speed) == ("DE", "AT", "next_day")
    assert order.items == (Item("s", "t", 2),)
    assert order.placed_at == datetime(2026, 11, 20, 11, tzinfo=UTC)


def test_an_order_of_which_only_the_amount_is_told_knows_nothing_else() -> None:
    order = read("demo", {"order": {"id": 7, "amount": "10.00", "currency": "USD"}})
    assert (order.order_id, order.amount) == ("7", Money(1000, "USD"))
    rest = (order.email, order.account_ref, order.account_age_days, order.billing_country, order.shipping_country,
            order.shipping_speed, order.failed_payments, order.placed_at)  # fmt: skip
    assert rest == (None,) * 8


@pytest.mark.parametrize(
    "amount, minor",
    [({"value": 126, "currency": "USD"}, 12600), ({"value": "126.50", "currency": "JPY"}, None), ({"value": "126.00", "currency": "JPY"}, 126),
     ({"value": "126.500", "currency": "USD"}, 12650), ({"value": "126.505", "currency": "USD"}, None), ({"value": "1.2500", "currency": "KWD"}, 1250),
     # Nothing to pay is an order; less than nothing, or nothing in an odd way, is not.
     ({"value": 0, "currency": "USD"}, 0), ({"value": "0.00", "currency": "USD"}, 0), ({"value": "0.000", "currency": "JPY"}, 0),
     ({"value": 0.0, "currency": "EUR"}, 0), ({"value": "0.001", "currency": "USD"}, None), ({"value": "", "currency": "USD"}, None)],
)  # fmt: skip
def test_amounts_are_exact_and_only_zeros_are_left_out(amount: dict[str, Any], minor: int | None) -> None:
    payload = {"order": {"id": "1", "amount": amount}}
    if minor is None:
        with pytest.raises(InvalidInput, match=r"order\.amount\.value"):
            read("demo", payload)
    else:
        assert read("demo", payload).amount.amount_minor == minor


def put(payload: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(payload)
    at: Any = changed
    *way, last = path.split(".")
    for key in way:
        at = at[int(key)] if isinstance(at, list) else at[key]
    at[last] = value
    return changed


ABSENT = [None, ""]


@pytest.mark.parametrize(
    "value",
    [
        *ABSENT,
        True,
        1.5,
        [],
        {},
        ["1"],
        "a b",
        "a//b",
        "/a",
        "a/",
        "a/../b",
        "a/.b",
        "..",
        ".",
        "é",
        "１",
        "x" * 101,
        -1,
        "a\n",
    ],
)
def test_an_order_id_that_is_none_is_refused_by_its_path(value: Any) -> None:
    for name, payload, path in (("demo", CASE, "order.id"), ("shopify", SHOPIFY, "id")):
        with pytest.raises(InvalidInput) as caught:
            read(name, put(payload, path, value))
        assert list(caught.value.errors) == [path]
        with pytest.raises(InvalidInput):
            order_id(source(name).fields, put(payload, path, value))


@pytest.mark.parametrize("value", ["a/b", "2026/11/a-7", "1", "A.b_c:d@e-f", "x" * 100])
def test_an_order_id_is_an_identifier_as_every_other(value: str) -> None:
    assert read("demo", put(CASE, "order.id", value)).order_id == value


@pytest.mark.parametrize("payload", [{}, {"order": None}, {"order": []}, {"order": "id"}, {"order": {}}, {"id": "1"}])
def test_a_payload_without_the_orders_path_names_it(payload: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as caught:
        source("demo").to_order(payload)
    assert "order.id" in caught.value.errors


@pytest.mark.parametrize(
    "path, value",
    [("order.email", 5), ("order.email", ["a@b.c"]), ("order.email", "x" * 501), ("order.email", "\ud800"), ("order.email", "a\0"),
     ("order.customer.id", 1.5), ("order.customer.id", {}), ("order.customer.id", "a b"), ("order.customer.age_days", "young"),
     ("order.customer.age_days", -1), ("order.customer.age_days", True), ("order.customer.age_days", 1.5), ("order.billing.country", 49),
     ("order.shipping.speed", False), ("order.items", {}), ("order.items", "x"), ("order.items", [{}] * (MAX_ITEMS + 1)), ("order.items.0.title", 5),
     ("order.items.0.quantity", "many"), ("order.items.0.sku", []), ("order.payment.failed_attempts", "none"),
     ("order.created_at", "yesterday"), ("order.created_at", "2026-11-20T11:00:00"), ("order.created_at", 1763636400),
     ("order.total.value", None), ("order.total.value", "-0.00"), ("order.total.value", "00"), ("order.total.value", False), ("order.total.value", "-1"), ("order.total.value", True),
     ("order.total.value", "1e3"), ("order.total.value", []), ("order.total.currency", None), ("order.total.currency", "eur"),
     ("order.total.currency", "XXX"), ("order.total.currency", 5)],
)  # fmt: skip
def test_what_is_of_another_type_is_refused_by_its_path(path: str, value: Any) -> None:
    changed = put(CASE, path, value)
    with pytest.raises(InvalidInput) as caught:
        source("demo").to_order(changed)
    [named] = caught.value.errors
    assert named == path or (path == "order.total.currency" and value is None and named.endswith("currency"))


@pytest.mark.parametrize(
    ("order", "named"), [({"total": "1.00"}, "order.id"), ({"id": "o-1", "total": "1.00"}, "currency")]
)
def test_a_place_that_the_map_leaves_to_its_default_is_named_in_the_log(order: dict[str, str], named: str) -> None:
    """The finding: it was logged as "elsewhere", as if the sender had chosen its name."""
    declared = OrderSource("demo", Signing(Scheme.HEX, ()), {"amount": (("order", "total"),)})
    with pytest.raises(InvalidInput) as caught:
        declared.to_order({"order": order})
    assert list(_faults_said(declared, caught.value)) == [named]


def test_an_item_that_is_no_object_is_named() -> None:
    with pytest.raises(InvalidInput) as caught:
        source("demo").to_order(put(CASE, "order.items", [{}, 5]))
    assert list(caught.value.errors) == ["order.items.1"]


@pytest.mark.parametrize("value", ABSENT)
def test_null_and_empty_are_unknown_everywhere_else(value: Any) -> None:
    for path in ("order.email", "order.customer.id", "order.customer.age_days", "order.billing.country", "order.shipping.speed",
                 "order.payment.failed_attempts", "order.created_at", "order.items"):  # fmt: skip
        source("demo").to_order(put(CASE, path, value))
    assert source("demo").to_order(put(CASE, "order.customer.age_days", value)).account_age_days is None
    assert source("demo").to_order(put(CASE, "order.payment.failed_attempts", value)).failed_payments is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6) | st.sampled_from(["USD", "1.00", "2026-11-20T11:00:00Z"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["order", "id", "total", "amount", "value", "currency", "email", "customer", "items", "title", "created_at"]),
        inner, max_size=6,
    ),
    max_leaves=20,
)  # fmt: skip


@given(st.dictionaries(st.sampled_from(["order", "id", "total_price", "currency", "customer", "line_items"]), JSON))
def test_no_payload_does_anything_but_become_an_order_or_name_a_path(payload: dict[str, Any]) -> None:
    for name in ("demo", "shopify"):
        minor: int | None = None
        named: dict[str, str] = {}
        try:
            minor = source(name).to_order(payload).amount.amount_minor
        except InvalidInput as error:
            named = error.errors
        assert bool(named) if minor is None else minor >= 0


MINUTE = timedelta(minutes=1)
FURTHEST = [timezone(sign * (timedelta(hours=24) - MINUTE)) for sign in (1, -1)]
"""The offsets furthest from UTC that a time can be written with; PostgreSQL knows none beyond 15:59."""


@pytest.mark.parametrize("field", ["placed_at", "account_created_at"])
@pytest.mark.parametrize("zone", [UTC, *FURTHEST])
def test_a_time_is_kept_as_the_same_moment_in_utc(field: str, zone: timezone) -> None:
    moment = datetime(2026, 11, 20, 11, tzinfo=zone)
    order = read("demo", put(CASE, f"order.{field}", moment.isoformat()))
    kept = facts_of(order)[field]
    assert datetime.fromisoformat(kept) == moment and kept.endswith("+00:00")


@pytest.mark.parametrize("field", ["placed_at", "account_created_at"])
@pytest.mark.parametrize(
    "text", ["0001-01-01T00:00:00+01:00", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-01:00"]
)
def test_a_time_that_has_no_year_in_utc_is_refused_by_its_path(field: str, text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read("demo", put(CASE, f"order.{field}", text))
    assert caught.value.errors == {f"order.{field}": "must be an RFC 3339 time"}
