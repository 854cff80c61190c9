"""Pages that are open and refresh themselves: nobody has to be there, so it keeps no session alive and moves nothing under a hand."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import pytest

from ops_console import identity
from ops_console.api.rendering import cursor_out
from sentinel.store.ids import new_id
from tests.integration.console.conftest import Browser
from tests.integration.console.page_roles import PAGES as ROUTES
from tests.integration.console.test_console_refunds import add_entries

PAGES = ("/ops", "/ops/approvals", "/ops/ledger", "/ops/orders")
IDLE = "update sentinel.operator_sessions set last_seen_at = clock_timestamp() - make_interval(secs => %s)"
SEEN = "select clock_timestamp() - last_seen_at < interval '1 minute' from sentinel.operator_sessions"


def refreshed(browser: Browser, pages: tuple[str, ...]) -> set[str]:
    """What these pages, left open, ask for again and again."""
    found: set[str] = set()
    for page in pages:
        here = set(re.findall(r'hx-get="([^"]+)"', browser.get(page).get_data(as_text=True)))
        assert here, page
        found |= {address.replace("&amp;", "&") for address in here}
    return found


def keeping_alive(fixtures: Any, browser: Browser, addresses: set[str]) -> list[str]:
    """Which of these count as somebody being there."""
    found = []
    for address in sorted(addresses):
        fixtures.sql(IDLE, 800)
        assert browser.get(address).status_code in (200, 204), address
        found += [address] if fixtures.sql(SEEN) == [(True,)] else []
    return found


def test_an_open_page_does_not_keep_its_session_alive(fixtures: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    app, waiting = fixtures.app(), fixtures.approval()
    browser = fixtures.browser("ann", app=app)
    asked = refreshed(browser, (*PAGES, f"/ops/approvals/{waiting}"))
    marked = [name for name, view in app.flask.view_functions.items() if getattr(view, "refreshes_itself", False)]
    print(f"N={len(asked)}")
    assert len(asked) == len(marked) == 6
    assert keeping_alive(fixtures, browser, asked) == []
    assert keeping_alive(fixtures, browser, set(PAGES)) == sorted(PAGES), "a page that somebody opens does"
    # The mutant: a console that takes every question for a person's.
    with monkeypatch.context() as mutant:
        mutant.setattr(identity, "_refreshes_itself", lambda: False)
        assert keeping_alive(fixtures, browser, asked) == sorted(asked)
    # Fifteen minutes without a person are the end, however often the page has asked meanwhile.
    fixtures.sql(IDLE, 899)
    assert all(browser.get(address).status_code in (200, 204) for address in asked)
    fixtures.sql(IDLE, 901)
    assert {browser.get(address).status_code for address in asked} == {303}


def test_a_part_that_refreshes_itself_names_whose_it_is_as_the_page_does(fixtures: Any) -> None:
    app, waiting = fixtures.app(), fixtures.approval()
    browser = fixtures.browser("ann", app=app)
    (whose,) = fixtures.sql("select operator_id::text from sentinel.operators where email = 'ann@demo.local'")[0]
    pages = (*PAGES, f"/ops/approvals/{waiting}")
    for page in pages:
        assert re.findall(r'<main id="main"[^>]* data-operator="([^"]+)"', browser.get(page).text) == [whose], page
    unchanged = [browser.client.get(part, headers={"HX-Request": "true"}) for part in refreshed(browser, pages)]
    assert {(part.status_code, part.headers["X-Operator-Id"]) for part in unchanged} == {(200, whose), (204, whose)}
    fixtures.approval()
    parts = [
        browser.client.get(part.partition("?")[0], headers={"HX-Request": "true"}) for part in refreshed(browser, pages)
    ]
    assert {(part.status_code, part.headers["X-Operator-Id"]) for part in parts} == {(200, whose)}


def test_a_part_that_refreshes_itself_puts_nothing_in_place_anew_that_did_not_change(fixtures: Any) -> None:
    """The finding: "This changed while you were looking at it" was put in place anew every three seconds: a screen reader
    said it each time, and its link lost the keyboard's focus before one could press it.
    """
    browser = fixtures.browser("ann")
    for page in (*PAGES, f"/ops/approvals/{fixtures.approval()}"):
        parts = re.findall(r"<[^>]* hx-get=[^>]*>", browser.get(page).text)
        assert parts and [part for part in parts if 'hx-swap="innerMorph"' not in part] == [], page


def test_every_page_whose_forms_put_another_page_in_its_place_has_that_pages_scripts(fixtures: Any) -> None:
    """A form that htmx sends swaps the body alone: the scripts of the page that one is led to are not loaded with it."""
    admin, waiting = fixtures.browser("ann", "admin", proved=True), fixtures.approval()
    pages = [route for method, route in ROUTES if method == "GET" and "<" not in route]
    boosted = {
        page: text for page in [*pages, f"/ops/approvals/{waiting}"] if " hx-boost=" in (text := admin.get(page).text)
    }
    assert boosted.keys() >= {"/ops/keys", "/ops/operators", "/ops/halts", "/ops/account", f"/ops/approvals/{waiting}"}
    for page, text in boosted.items():
        loaded = re.findall(r'<script src="[^"]*?([a-z]+\.js)', text.partition("</head>")[0])
        assert {"live.js", "copy.js"} <= set(loaded), page
        assert len(loaded) == len(set(loaded)), page


def test_the_first_page_of_a_list_refreshes_itself_and_older_ones_do_not(fixtures: Any) -> None:
    vic = fixtures.browser("vic", "viewer")
    for list_, live in (("/ops/ledger", "/ops/ledger-now"), ("/ops/orders", "/ops/orders-now")):
        page = vic.get(list_).get_data(as_text=True)
        (part,) = re.findall(rf'<[^>]* hx-get="{live}"[^>]*>', page)
        assert "data-live" in part and "data-when-calm" in part and "every 5s" in part
        asked = vic.get(f"{list_}?q=abc&status=nonsense")
        assert asked.status_code == 400 and live not in asked.get_data(as_text=True)
        assert f'hx-get="{live}?q=abc"' in vic.get(f"{list_}?q=abc").get_data(as_text=True)
        assert vic.get(f"{live}?status=nonsense").status_code == 400
        assert vic.get(f"{live}?cursor={cursor_out(datetime.now(UTC), str(new_id()))}").status_code == 200

    add_entries(fixtures, 60)
    newest = vic.get("/ops/ledger").get_data(as_text=True)
    (older,) = re.findall(r'href="(/ops/ledger\?cursor=[^"]+)"', newest)
    assert 'hx-get="' not in vic.get(older).get_data(as_text=True)
    fragment = vic.get("/ops/ledger-now").get_data(as_text=True)
    assert "<html" not in fragment and "<form" not in fragment, "what is typed is not in the part that is replaced"
    assert len(set(re.findall(r'href="/ops/ledger/([^"]+)"', fragment))) == 50
    assert "60" in fragment.partition("hx-partial")[2]
    assert older in fragment
    elsewhere = fixtures.at_page(fixtures.operator("oda", "viewer", fixtures.tenant("elsewhere")).email)
    assert "lge_" not in elsewhere.get("/ops/ledger-now").get_data(as_text=True)
