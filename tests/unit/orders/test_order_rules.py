"""The rules of order review: each on both sides of its number, and nothing unknown taken for zero."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sentinel.core.money import Money
from sentinel.platform.resources import policies_dir
from sentinel.policy.errors import PolicyError
from worker.orders.order import MAX_SIGNAL_CHARS, RANK, Band, Item, KnownAccount, Order
from worker.orders.rule_settings import FILE_NAME, RuleSettings
from worker.orders.scoring import Code, RulesScore

RULES = RulesScore(RuleSettings.load(policies_dir() / FILE_NAME))
ORDER = Order(
    source="demo", order_id="1", amount=Money(4990, "USD"), email="someone@example.com", account_ref="a", account_age_days=400,
    billing_country="DE", shipping_country="DE", shipping_speed="standard", items=(Item("s", "Teapot", 1),), failed_payments=0,
)  # fmt: skip
KNOWN = KnownAccount(0, Money(0, "USD"))
USD, GBP = (lambda minor: Money(minor, "USD")), (lambda minor: Money(minor, "GBP"))
PHONE = (Item("s", "iPhone 17", 1),)


def scored(known: KnownAccount = KNOWN, **changes: Any) -> tuple[Band, list[str]]:
    score = RULES.score(replace(ORDER, **changes), known)
    return score.band, [signal.code for signal in score.signals]


def test_an_ordinary_order_is_low_without_a_signal() -> None:
    assert scored() == (Band.LOW, [])
    assert RULES.score(ORDER, KNOWN).model == "not_asked"


def test_an_account_of_one_day_is_told_as_one() -> None:
    (signal,) = RULES.score(replace(ORDER, account_age_days=1, amount=USD(30000)), KNOWN).signals
    assert signal.detail.endswith("from an account of 1 day")


LOW, MEDIUM, HIGH = Band.LOW, Band.MEDIUM, Band.HIGH
TABLE: list[tuple[str, dict[str, Any], KnownAccount, Band, list[str]]] = [
    ("shipped elsewhere", {"shipping_country": "US"}, KNOWN, MEDIUM, ["country_mismatch"]),
    ("the same country in small letters", {"shipping_country": "de"}, KNOWN, LOW, []),
    ("no shipping country", {"shipping_country": None}, KNOWN, LOW, ["country_unknown"]),
    ("no billing country", {"billing_country": None}, KNOWN, LOW, ["country_unknown"]),
    ("new today, 299.99", {"account_age_days": 0, "amount": USD(29999)}, KNOWN, MEDIUM, ["value_for_new_account"]),
    ("new today, 300.00", {"account_age_days": 0, "amount": USD(30000)}, KNOWN, HIGH, ["value_for_new_account"]),
    ("a day old, 300.00", {"account_age_days": 1, "amount": USD(30000)}, KNOWN, MEDIUM, ["value_for_new_account"]),
    ("6 days, 149.99", {"account_age_days": 6, "amount": USD(14999)}, KNOWN, LOW, []),
    ("6 days, 150.00", {"account_age_days": 6, "amount": USD(15000)}, KNOWN, MEDIUM, ["value_for_new_account"]),
    ("7 days, 150.00", {"account_age_days": 7, "amount": USD(15000)}, KNOWN, LOW, []),
    ("89 days, 599.99", {"account_age_days": 89, "amount": USD(59999)}, KNOWN, LOW, []),
    ("89 days, 600.00", {"account_age_days": 89, "amount": USD(60000)}, KNOWN, MEDIUM, ["value_for_new_account"]),
    ("90 days, 600.00", {"account_age_days": 90, "amount": USD(60000)}, KNOWN, LOW, []),
    ("unknown age, 999.99", {"account_age_days": None, "amount": USD(99999)}, KNOWN, LOW, []),
    ("unknown age, 1000.00", {"account_age_days": None, "amount": USD(100000)}, KNOWN, MEDIUM, ["value_for_unknown_account"]),
    ("pounds have their own numbers", {"account_age_days": 6, "amount": GBP(15000)}, KNOWN, MEDIUM, ["value_for_new_account"]),
    ("yen have none", {"amount": Money(100, "JPY")}, KNOWN, MEDIUM, ["currency_not_covered"]),
    ("nothing to pay", {"amount": USD(0)}, KNOWN, MEDIUM, ["nothing_to_pay"]),
    ("a cent", {"amount": USD(1)}, KNOWN, LOW, []),
    ("a phone by express, 99.99", {"items": PHONE, "shipping_speed": "Express", "amount": USD(9999)}, KNOWN, LOW, []),
    ("a phone by express, 100.00", {"items": PHONE, "shipping_speed": "Express", "amount": USD(10000)}, KNOWN, MEDIUM, ["rush_on_resellable"]),
    ("a phone slowly", {"items": PHONE, "amount": USD(20000)}, KNOWN, LOW, []),
    ("a phone at an unknown speed", {"items": PHONE, "shipping_speed": None, "amount": USD(20000)}, KNOWN, LOW, []),
    ("a teapot by express", {"shipping_speed": "express", "amount": USD(20000)}, KNOWN, LOW, []),
    ("watches by next-day", {"items": (Item(None, "Two WATCHES", 2),), "shipping_speed": "NEXT-DAY air", "amount": USD(20000)}, KNOWN, MEDIUM,
     ["rush_on_resellable"]),
    ("a watchdog is no watch", {"items": (Item(None, "Watchdog collar", 1),), "shipping_speed": "express", "amount": USD(20000)}, KNOWN, LOW, []),
    ("full-width and invisible letters", {"items": (Item(None, "ｉＰ\u200bhone", 1),), "shipping_speed": "ｅxpress", "amount": USD(20000)}, KNOWN,
     MEDIUM, ["rush_on_resellable"]),
    ("a mail box of nobody", {"email": "x@mailinator.com"}, KNOWN, MEDIUM, ["disposable_mail"]),
    ("in capitals, below it and with a dot", {"email": "X@a.MailInator.COM."}, KNOWN, MEDIUM, ["disposable_mail"]),
    ("one with a hyphen", {"email": "x@temp-mail.org"}, KNOWN, MEDIUM, ["disposable_mail"]),
    ("two at signs", {"email": "x@example.com@yopmail.com"}, KNOWN, MEDIUM, ["disposable_mail"]),
    ("one with a name behind it", {"email": "x@mailinator.com (Jane)"}, KNOWN, LOW, ["mail_unknown"]),
    ("a name and a full-width box", {"email": "A <x@ｙopmail.com>"}, KNOWN, MEDIUM, ["disposable_mail"]),
    ("a name that only ends so", {"email": "x@notmailinator.com"}, KNOWN, LOW, []),
    ("a name that only begins so", {"email": "x@mailinator.com.example.org"}, KNOWN, LOW, []),
    ("no mail address", {"email": None}, KNOWN, LOW, ["mail_unknown"]),
    ("a text that is none", {"email": "nobody"}, KNOWN, LOW, ["mail_unknown"]),
    ("one failed payment", {"failed_payments": 1}, KNOWN, LOW, []),
    ("two", {"failed_payments": 2}, KNOWN, MEDIUM, ["failed_payments"]),
    ("four", {"failed_payments": 4}, KNOWN, MEDIUM, ["failed_payments"]),
    ("five", {"failed_payments": 5}, KNOWN, HIGH, ["failed_payments"]),
    ("unknown", {"failed_payments": None}, KNOWN, LOW, ["failed_payments_unknown"]),
    ("the third order of a day", {}, KnownAccount(2, USD(2)), LOW, []),
    ("the fourth", {}, KnownAccount(3, USD(3)), MEDIUM, ["orders_in_a_day"]),
    ("the ninth", {}, KnownAccount(8, USD(8)), MEDIUM, ["orders_in_a_day"]),
    ("the tenth", {}, KnownAccount(9, USD(9)), HIGH, ["orders_in_a_day"]),
    ("1999.99 in a day", {}, KnownAccount(1, USD(199999 - 4990)), LOW, []),
    ("2000.00 in a day", {}, KnownAccount(1, USD(200000 - 4990)), MEDIUM, ["amount_in_a_day"]),
    ("an account that is unknown", {}, KnownAccount(), LOW, ["account_unknown"]),
    ("two mediums", {"email": "x@mailinator.com", "failed_payments": 2}, KNOWN, MEDIUM, ["disposable_mail", "failed_payments"]),
    ("three mediums are a pattern", {"email": "x@mailinator.com", "failed_payments": 2, "shipping_country": "US"}, KNOWN, HIGH,
     ["country_mismatch", "disposable_mail", "failed_payments"]),
    ("three that only note something are not", {"email": None, "failed_payments": None, "shipping_country": None}, KNOWN, LOW,
     ["country_unknown", "mail_unknown", "failed_payments_unknown"]),
]  # fmt: skip


@pytest.mark.parametrize("name, changes, known, band, codes", TABLE, ids=[row[0] for row in TABLE])
def test_the_table_of_rules(
    name: str, changes: dict[str, Any], known: KnownAccount, band: Band, codes: list[str]
) -> None:
    assert scored(known, **changes) == (band, codes)


def test_every_code_is_in_the_table() -> None:
    assert {code for row in TABLE for code in row[4]} == set(Code)


def test_what_is_unknown_is_not_zero() -> None:
    """An account of unknown age is not new, unknown failures are not none, an unknown account is not an account without orders."""
    large = {"amount": USD(30000)}
    assert scored(account_age_days=None, **large) != scored(account_age_days=0, **large)
    assert scored(failed_payments=None) != scored(failed_payments=0)
    assert scored(KnownAccount()) != scored(KnownAccount(0, USD(0)))


def test_more_of_anything_is_never_milder() -> None:
    for field, steps in {
        "failed_payments": range(8),
        "amount": [USD(n) for n in (1, 10000, 15000, 30000, 60000, 100000)],
    }.items():
        bands = [
            RANK[scored(account_age_days=0, items=PHONE, shipping_speed="rush", **{field: step})[0]] for step in steps
        ]
        assert bands == sorted(bands)


def test_a_long_title_stays_within_a_signal() -> None:
    items = tuple(Item(None, "iphone " + "x" * 490, 1) for _ in range(50))
    [signal] = RULES.score(replace(ORDER, items=items, shipping_speed="rush", amount=USD(20000)), KNOWN).signals
    assert len(signal.detail) == MAX_SIGNAL_CHARS


# The file


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return Path(shutil.copy(policies_dir() / FILE_NAME, tmp_path / FILE_NAME))


@pytest.mark.parametrize(
    "old, new, order, band",
    [
        ("medium_from: 2", "medium_from: 3", {"failed_payments": 2}, LOW),
        ("high_from_signals: 3", "high_from_signals: 2", {"email": "x@mailinator.com", "failed_payments": 2}, HIGH),
        (
            "  unknown: ignore             # most shops do not tell",
            "  unknown: medium",
            {"failed_payments": None},
            MEDIUM,
        ),
        (
            "  band: medium\n  unknown: ignore             # a guest's",
            "  band: high\n  unknown: ignore  #",
            {"shipping_country": "US"},
            HIGH,
        ),
        ("  unknown: ignore             # a guest's", "  unknown: medium  #", {"shipping_country": None}, MEDIUM),
        ("mailinator.com", "example.com", {}, MEDIUM),
        ("gift card", "teapot", {"shipping_speed": "express", "amount": USD(20000)}, MEDIUM),
    ],
)
def test_a_number_is_changed_in_the_file_and_not_in_code(
    file: Path, old: str, new: str, order: dict[str, Any], band: Band
) -> None:
    text = file.read_text()
    assert old in text
    before = RULES.score(replace(ORDER, **order), KNOWN).band
    file.write_text(text.replace(old, new, 1))
    after = RulesScore(RuleSettings.load(file)).score(replace(ORDER, **order), KNOWN).band
    assert (before is not band, after) == (True, band)


@pytest.mark.parametrize(
    "old, new, message",
    [
        ("country_mismatch:", "country_mismach:", 'did you mean "country_mismatch"'),
        ("band: medium", "band: mediun", 'did you mean "medium"'),
        ("band: medium", "band: low", "unknown value"),
        ("unknown: ignore", "unknown: ignored", 'did you mean "ignore"'),
        ("high_from_signals: 3", "high_from_signals: 1", "between 2 and"),
        ("high_from: 5 ", "high_from: 1 ", "between 2 and"),
        ("younger_than_days: 1,", "younger_than: 1,", 'did you mean "younger_than_days"'),
        ('USD: "300.00"', "USD: 300", "must be text"),
        ('USD: "300.00"', 'USD: "300.001"', "decimal digits"),
        ('USD: "300.00"', 'USX: "300.00"', "is not a currency"),
        ("  high_from: 5                # a list of stolen numbers being tried\n", "", '"high_from" is missing'),
        ("velocity:", "failed_payments:", "duplicate key"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(file: Path, old: str, new: str, message: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))
    with pytest.raises(PolicyError) as caught:
        RuleSettings.load(file)
    assert message in str(caught.value)
    assert caught.value.line > 0
