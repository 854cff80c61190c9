"""The confirm page in a real browser of a phone's size: read, tap, done, under its strict policy, with and without scripts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from sentinel.cli.scratch import listening
from tests.support.confirm_fixtures import Cards

pytestmark = [pytest.mark.browser, pytest.mark.slow]

PHONE = {"width": 390, "height": 844}
LEAST_TARGET = 44
"""CSS pixels of what a thumb can hit (WCAG 2.2, 2.5.5)."""


@pytest.fixture
def browser(chromium: Any) -> Any:
    """The browser that all tests of a process share."""
    return chromium


@pytest.fixture
def address(cards: Cards) -> Iterator[str]:
    """A console that listens."""
    with listening(cards.app()) as url:
        yield url


@contextmanager
def phone(browser: Any, address: str, **over: Any) -> Iterator[Any]:
    """A page that fails the test when the browser complains, asks anybody else, or is given a cookie."""
    complaints: list[str] = []
    context = browser.new_context(
        **{"viewport": PHONE, "has_touch": True, "is_mobile": True, "locale": "de-DE", **over}
    )
    context.set_default_timeout(60_000)
    page = context.new_page()
    page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda asked: None if asked.url.startswith((address, "data:")) else complaints.append(asked.url))
    yield page
    complaints += [cookie["name"] for cookie in context.cookies()]
    context.close()
    assert complaints == []


@pytest.mark.parametrize("scripts", [True, False], ids=["scripts on", "scripts off"])
def test_a_customer_confirms_on_a_phone(cards: Cards, browser: Any, address: str, scripts: bool) -> None:
    cards.waiting("a", value=98000, language="de", order="ORD-2024-000123")
    with phone(browser, address, java_script_enabled=scripts) as page:
        page.goto(address + cards.link("a"))
        assert page.locator("html").get_attribute("lang") == "de"
        buttons = page.locator("button").all()
        assert len(buttons) == 2
        for button in buttons:
            box = button.bounding_box()
            assert box["height"] >= LEAST_TARGET
            assert box["y"] + box["height"] <= PHONE["height"], "both answers are on the first screen"
        page.get_by_role("button", name="Ja, 980,00\xa0€ erstatten").tap()
        page.get_by_role("heading", name="Danke, Ihre Bestätigung ist da").wait_for()
        assert cards.status("a") == "confirmed"
        page.reload()
        page.get_by_role("heading", name="Sie haben bereits bestätigt").wait_for()
        page.go_back()
    assert cards.one("select count(*) from refunds.confirmations where answered_at is not null") == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 390, 1280])
def test_nothing_overflows_and_everything_can_be_read(
    cards: Cards, browser: Any, address: str, width: int, scheme: str
) -> None:
    cards.waiting("a", value=10**12, currency="CHF", language="de", order="W" * 300, scenario="quality")
    with phone(browser, address, viewport={"width": width, "height": 844}, color_scheme=scheme) as page:
        page.goto(address + cards.link("a"))
        assert page.locator("button").count() == 2
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        texts = page.evaluate(CONTRASTS)
        assert texts and [found for found in texts if found["contrast"] < 4.5] == []


# For every element with text of its own: how it stands out from the nearest background (WCAG 2.2, 1.4.3).
CONTRASTS = """() => {
  const light = c => { const v = c.match(/[\\d.]+/g).map(Number).slice(0, 3).map(x => x / 255)
    .map(x => x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4); return 0.2126 * v[0] + 0.7152 * v[1] + 0.0722 * v[2] };
  const behind = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
    if (!/, 0\\)$/.test(c)) return c } return 'rgb(255, 255, 255)' };
  return [...document.querySelectorAll('body *')]
    .filter(e => [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim()))
    .map(e => { const [a, b] = [light(getComputedStyle(e).color), light(behind(e))].sort((x, y) => y - x);
      return { text: e.textContent.trim().slice(0, 30), contrast: (a + 0.05) / (b + 0.05) } }) }"""
