"""What customers read: amounts and moments as their language writes them, foreign text without tricks, complete catalogues."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone

import pytest

from ops_console.confirm.translations import CATALOGUES as PAGES
from sentinel.core.customer_text import LANGUAGES, language_of, moment_text, money_text, visible_text
from worker.notify import CATALOGUES as MESSAGES


@pytest.mark.parametrize(
    ("minor", "currency", "english", "german"),
    [
        (980, "USD", "US$9.80", "9,80 US-$"), (98000, "EUR", "€980.00", "980,00 €"), (1, "GBP", "£0.01", "0,01 £"),
        (123456789, "EUR", "€1,234,567.89", "1.234.567,89 €"), (980, "JPY", "980 JPY", "980 JPY"),
        (1005, "KWD", "1.005 KWD", "1,005 KWD"), (10**12, "CHF", "10,000,000,000.00 CHF", "10.000.000.000,00 CHF"),
    ],
)  # fmt: skip
def test_an_amount_is_written_as_the_language_writes_it(minor: int, currency: str, english: str, german: str) -> None:
    shown = [money_text(minor, currency, language).replace("\xa0", " ") for language in ("en", "de")]
    assert shown == [english, german]


def test_a_moment_says_its_zone() -> None:
    moment = datetime(2026, 3, 1, 0, 5, tzinfo=timezone(timedelta(hours=1)))
    assert moment_text(moment, "en") == "28 February 2026, 23:05 UTC"
    assert moment_text(moment.astimezone(UTC), "de") == "28. Februar 2026, 23:05 Uhr UTC"


@pytest.mark.parametrize(
    ("wishes", "language"),
    [((None,), "en"), (("de",), "de"), (("de-AT",), "de"), (("DE",), "de"), (("fr", "de-CH"), "de"), (("fr", "it"), "en"),
     (("en-GB", "de"), "en"), (("*",), "en"), (("", None, "de"), "de"), (("den",), "en")],
)  # fmt: skip
def test_the_first_wish_that_can_be_met_is_met(wishes: tuple[str | None, ...], language: str) -> None:
    assert language_of(*wishes) == language


@pytest.mark.parametrize("hidden", ["\u202e", "\u2066", "\u200b", "\u200d", "\ufeff", "\u00ad", "\x00", "\x1b", "\n", "\r", "\t", "\u2028",
                                    "\u3164", "\U000e0041", "\ufe0f", "\ud800"])  # fmt: skip
def test_what_would_be_invisible_is_written_out(hidden: str) -> None:
    shown = visible_text(f"ORD{hidden}1")
    assert shown == f"ORD[U+{ord(hidden):04X}]1"
    assert shown.isprintable()


def test_foreign_text_is_bounded_and_marks_cannot_pile_up() -> None:
    assert visible_text("é ORD-1 заказ 注文") == "é ORD-1 заказ 注文"
    assert len(visible_text("x" * 10_000)) == 201
    assert visible_text("a" + "\u0301" * 9).count("\u0301") == 2


@pytest.mark.parametrize("catalogues", [PAGES, MESSAGES], ids=["pages", "messages"])
def test_every_catalogue_has_every_key_and_every_place_for_a_value(catalogues: Mapping[str, Mapping[str, str]]) -> None:
    assert set(catalogues) == set(LANGUAGES)
    faults = differences(catalogues)
    assert faults == []


def differences(catalogues: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Keys that are missing, empty or have other places than in English; texts that nobody translated."""
    found = []
    for language, texts in catalogues.items():
        for key in catalogues["en"].keys() ^ texts.keys():
            found.append(f"{language}: {key} is not in both")
        for key in catalogues["en"].keys() & texts.keys():
            places = [sorted(re.findall(r"\{\w+\}", catalogues[one][key])) for one in ("en", language)]
            if places[0] != places[1] or not texts[key].strip():
                found.append(f"{language}: {key}")
            if language != "en" and texts[key] == catalogues["en"][key]:
                found.append(f"{language}: {key} is English")
    return found


def test_a_catalogue_with_a_hole_would_be_caught() -> None:
    """The mutant."""
    german = {**PAGES["de"], "again": PAGES["en"]["again"], "answered": "ohne Zeitpunkt"}
    del german["card.next"]
    assert len(differences({"en": PAGES["en"], "de": german})) == 3
