"""The customer's page: every state has a clear page in their language; reading changes nothing; nothing but the answer is taken."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.support.confirm_fixtures import SECRETS, Cards

FORM = "application/x-www-form-urlencoded"


def digest_of(html: str) -> str:
    """What the form would send back."""
    found = re.search(r'name="digest" value="(sha256:[0-9a-f]{64})"', html)
    assert found is not None, html
    return found[1]


def tap(client: Any, link: str, answer: str = "confirm", **fields: Any) -> Any:
    """Open the page and press a button, as a browser does under this page's policy."""
    form = {"digest": digest_of(client.get(link).text), "answer": answer, **fields}
    return client.post(link, data=form, headers={"Sec-Fetch-Site": "same-origin", "Origin": "null"})


def shows(response: Any, status: int, *texts: str) -> None:
    """Status, the texts, and everything that holds for all of these pages."""
    assert response.status_code == status, response.text
    for text in texts:
        assert text in response.text, response.text
    headers = response.headers
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert headers["Content-Security-Policy"].startswith("default-src 'none'; style-src 'self'")
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert (headers["Cache-Control"], headers["Referrer-Policy"]) == ("no-store", "no-referrer")
    assert "noindex" in headers["X-Robots-Tag"]
    assert "Set-Cookie" not in headers
    assert not re.search(r"<script|<style|style=|\son\w+=|javascript:", response.text)
    assert re.search(r'<html lang="(en|de)">', response.text)


def test_a_card_is_shown_and_confirmed_once(cards: Cards) -> None:
    cards.waiting("a", value=98000, contact="someone@shop.example")
    client, link = cards.app().test_client(), cards.link("a")
    page = client.get(link)
    shows(
        page,
        200,
        "Is this refund right?",
        "€980.00",
        "ORD-1",
        "Shipping fee",
        "What happens next",
        "Yes, refund €980.00",
    )
    assert page.text.count("<button") == 2
    assert "someone" not in page.text
    shows(tap(client, link), 200, "Thank you, that is confirmed", "€980.00")
    assert cards.status("a") == "confirmed"
    assert cards.is_due("a")
    shows(client.get(link), 200, "You have already confirmed", "Answered on")
    again = client.post(link, data={"digest": digest_of(page.text), "answer": "decline"})
    shows(again, 200, "You have already confirmed")
    assert cards.status("a") == "confirmed"


def test_a_card_is_declined(cards: Cards) -> None:
    cards.waiting("a")
    client, link = cards.app().test_client(), cards.link("a")
    digest = digest_of(client.get(link).text)
    shows(tap(client, link, "decline"), 200, "The request has ended", "nothing is paid")
    assert cards.status("a") == "declined"
    shows(client.post(link, data={"digest": digest, "answer": "confirm"}), 200, "You have already declined")
    shows(client.get(link), 200, "You have already declined")


def test_an_expired_link_says_so(cards: Cards) -> None:
    cards.waiting("a")
    client, link = cards.app().test_client(), cards.link("a")
    digest = digest_of(client.get(link).text)
    cards.let_expire("a")
    shows(client.get(link), 410, "The time to answer is over")
    shows(client.post(link, data={"digest": digest, "answer": "confirm"}), 410, "The time to answer is over")
    assert cards.status("a") == "pending"
    assert not cards.is_due("a")


def test_a_link_whose_own_time_is_over_does_not_answer_a_card_that_somebody_prolonged(cards: Cards) -> None:
    cards.waiting("a")
    link, client = cards.link("a"), cards.app().test_client()
    cards.let_expire("a")
    old = cards.one("select expires_at from refunds.confirmations")
    from sentinel.core.confirm_link import ConfirmLink, ConfirmLinks

    card_id, digest = cards.all("select confirmation_id, digest from refunds.confirmations")[0]
    stale = f"/confirm/{ConfirmLinks(SECRETS).issue(ConfirmLink(cards.tenant_id, card_id, digest, old))}"
    cards.admin.execute("alter table refunds.confirmations disable trigger check_confirmation")
    cards.admin.execute("update refunds.confirmations set expires_at = clock_timestamp() + interval '1 day'")
    shows(client.get(link), 200, "Is this refund right?")
    shows(client.get(stale), 410, "The time to answer is over")
    shows(client.post(stale, data={"digest": digest, "answer": "confirm"}), 410, "The time to answer is over")
    assert cards.status("a") == "pending"


def test_a_superseded_card_says_so(cards: Cards) -> None:
    cards.waiting("a")
    client, link = cards.app().test_client(), cards.link("a")
    digest = digest_of(client.get(link).text)
    cards.confirmations.open([cards.ask("a", channel="public")])
    shows(client.get(link), 410, "This link no longer applies")
    shows(client.post(link, data={"digest": digest, "answer": "confirm"}), 410, "This link no longer applies")
    cards.add("ended")
    cards.confirmations.open([cards.ask("ended")])
    cards.pause("ended")
    ended = cards.link("ended")
    cards.admin.execute("set session_replication_role = replica")
    cards.admin.execute(
        "update refunds.ledger_entries set status = 'DENIED', waiting_for = null where ledger_entry_id = 'ended'"
    )
    shows(client.get(ended), 410, "This link no longer applies")


@pytest.mark.parametrize("path", ["/confirm/x", "/confirm/" + "A" * 140, "/confirm/", "/confirm/a/b/c", "/confirm/a%0Ab", "/confirm/%00", "/confirm/" + "ü" * 140,
                                  "/confirm/" + "x" * 5000, "/confirm/../../etc/passwd"])  # fmt: skip
def test_an_unknown_link_has_one_neutral_page_and_asks_no_database(cards: Cards, path: str) -> None:
    app = cards.app(database_url="host=127.0.0.1 port=1 connect_timeout=1")
    shows(app.test_client().get(path), 404, "We do not know this link")
    if path != "/confirm/":
        shows(app.test_client().post(path, data={"digest": "x", "answer": "confirm"}), 404, "We do not know this link")


def test_forged_foreign_and_vanished_links_look_the_same(cards: Cards) -> None:
    cards.waiting("a")
    link = cards.link("a")
    client = cards.app().test_client()
    forged = cards.link("a", secrets=("another-secret-0123456789-0123456789",))
    altered = link[:-5] + ("A" if link[-5] != "A" else "B") + link[-4:]
    cards.admin.execute("set session_replication_role = replica")
    cards.admin.execute("update refunds.confirmations set tenant_id = gen_random_uuid()")
    pages = [client.get(one) for one in (forged, altered, link)]
    for page in pages:
        shows(page, 404, "We do not know this link")
    assert len({page.text for page in pages}) == 1


def test_without_a_secret_no_link_is_known(cards: Cards) -> None:
    cards.waiting("a")
    link = cards.link("a")
    shows(cards.app(confirm_secrets=()).test_client().get(link), 404, "We do not know this link")


def test_a_rotated_secret_still_knows_the_links_that_are_out(cards: Cards) -> None:
    cards.waiting("a")
    link = cards.link("a")
    rotated = cards.app(confirm_secrets=("a-newer-secret-0123456789-0123456789", *SECRETS))
    shows(rotated.test_client().get(link), 200, "Is this refund right?")


@pytest.mark.parametrize(
    ("data", "content_type"),
    [
        ("digest={digest}&answer=confirm&amount=1", FORM), ("digest={digest}&answer=maybe", FORM), ("digest={digest}", FORM),
        ("answer=confirm", FORM), ("digest={digest}&answer=confirm&answer=decline", FORM), ("", FORM), ("%ff=1", FORM), ("digest=%00&answer=confirm", FORM),
        ("digest={digest}&answer=confirm&" + "x" * 2000, FORM), ('{{"digest": "{digest}", "answer": "confirm"}}', "application/json"),
        ("digest={digest}&answer=confirm", "text/plain"), ("digest=%ed%a0%80&answer=confirm", FORM),
    ],
)  # fmt: skip
def test_a_form_that_is_not_ours_changes_nothing(cards: Cards, data: str, content_type: str) -> None:
    cards.waiting("a")
    client, link = cards.app().test_client(), cards.link("a")
    body = data.format(digest=digest_of(client.get(link).text))
    shows(
        client.post(link, data=body, content_type=content_type),
        400,
        "We did not understand that",
        "Open the page again",
    )
    assert cards.status("a") == "pending"


def test_an_answer_to_another_amount_is_not_taken(cards: Cards) -> None:
    cards.waiting("a")
    client, link = cards.app().test_client(), cards.link("a")
    shows(tap(client, link, digest="sha256:" + "0" * 64), 409, "Please look once more", "Nothing was recorded")
    assert cards.status("a") == "pending"


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_form_on_another_site_is_not_taken(cards: Cards, site: str) -> None:
    cards.waiting("a")
    client, link = cards.app().test_client(), cards.link("a")
    form = {"digest": digest_of(client.get(link).text), "answer": "confirm"}
    shows(client.post(link, data=form, headers={"Sec-Fetch-Site": site}), 400, "We did not understand that")
    assert cards.status("a") == "pending"


def test_reading_changes_nothing_however_often(cards: Cards) -> None:
    from tests.support.harness import dump

    cards.waiting("a")
    client, link = cards.app().test_client(), cards.link("a")
    cards.waiting("late")
    late = cards.link("late")
    cards.let_expire("late")
    before = dump(cards.admin)
    for path in (link, late, f"{link}?answer=confirm&utm_source=mail"):
        assert client.get(path).status_code in (200, 410)
        assert client.head(path).status_code in (200, 410)
        assert client.options(path).status_code == 200
    assert client.put(link).status_code == client.delete(link).status_code == 405
    assert dump(cards.admin) == before


def test_a_database_that_is_away_is_a_page_with_try_again(cards: Cards, capsys: pytest.CaptureFixture[str]) -> None:
    cards.waiting("a")
    link = cards.link("a")
    client = cards.app(database_url="host=127.0.0.1 port=1 connect_timeout=1").test_client()
    for response in (client.get(link), client.post(link, data={"digest": "sha256:" + "0" * 64, "answer": "confirm"})):
        shows(response, 503, "Not possible at the moment", "Open the page again")
        assert response.headers["Retry-After"] == "5"
    printed = "".join(capsys.readouterr())
    assert link.removeprefix("/confirm/") not in printed


def test_a_defect_is_a_page_too_and_the_log_has_no_link(
    cards: Cards, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cards.waiting("a")
    link = cards.link("a")
    monkeypatch.setattr("ops_console.confirm.routes.open_card", lambda *_: 1 / 0)
    shows(cards.app().test_client().get(link), 503, "Not possible at the moment")
    printed = "".join(capsys.readouterr())
    assert "ZeroDivisionError" in printed
    assert link.removeprefix("/confirm/") not in printed


@pytest.mark.parametrize(
    ("language", "accepted", "shown"),
    [("de", "en", "de"), (None, "de-AT,en;q=0.5", "de"), (None, "fr", "en"), ("fr", "de", "de"), (None, None, "en"), ("en", "de", "en")],
)  # fmt: skip
def test_the_language_is_the_cards_then_the_browsers_then_english(
    cards: Cards, language: str | None, accepted: str | None, shown: str
) -> None:
    cards.waiting("a", language=language, value=98000)
    headers = {"Accept-Language": accepted} if accepted else {}
    page = cards.app().test_client().get(cards.link("a"), headers=headers)
    shows(page, 200, f'<html lang="{shown}">', {"de": "980,00\xa0€", "en": "€980.00"}[shown])


def test_a_coupon_is_not_called_a_refund(cards: Cards) -> None:
    cards.waiting("a", scenario="compensation")
    page = cards.app().test_client().get(cards.link("a"))
    shows(page, 200, "Is this coupon right?", "Coupon worth", "No money is paid back")
    assert "refund" not in page.text.lower()


def test_foreign_text_is_shown_plainly(cards: Cards) -> None:
    cards.waiting("a", order="<b>&\"'\u202eORD\u200b-1{{7*7}}")
    page = cards.app().test_client().get(cards.link("a"))
    shows(page, 200, "&lt;b&gt;&amp;&#34;&#39;[U+202E]ORD[U+200B]-1{{7*7}}")
    assert "<b>" not in page.text


def test_a_card_without_an_order_has_no_empty_line(cards: Cards) -> None:
    cards.waiting("a", order=None, scenario="standard")
    page = cards.app().test_client().get(cards.link("a"))
    shows(page, 200, "Is this refund right?")
    assert "<dt>Order" not in page.text
    assert "<dt>For" not in page.text


def test_the_style_sheet_is_found_from_every_page(cards: Cards) -> None:
    client = cards.app().test_client()
    for path in ("/confirm/x", "/confirm/a/b/c", "/confirm/"):
        (root,) = re.findall(r'href="((?:\.\./)+)static/confirm.css"', client.get(path).text)
        assert root.count("../") == path.count("/") - 1
    with client.get("/static/confirm.css") as sheet:
        assert sheet.status_code == 200
        assert sheet.content_type.startswith("text/css")


def taken_unseen(cards: Cards) -> list[str]:
    """Digests of something else under which a customer's yes was taken all the same."""
    app, found = cards.app(), []
    for number in range(3):
        cards.waiting(f"seen{number}", value=980)
        cards.waiting(f"other{number}", value=9800)
    seen = digest_of(app.test_client().get(cards.link("seen0")).text)
    other = digest_of(app.test_client().get(cards.link("other0")).text)
    for number, digest in enumerate((other, seen[:-1] + ("0" if seen[-1] != "0" else "1"), "sha256:" + "0" * 64)):
        link = cards.link(f"seen{number}")
        if app.test_client().post(link, data={"digest": digest, "answer": "confirm"}).status_code == 200:
            found.append(digest)
        assert (cards.status(f"seen{number}") == "confirmed") == (digest in found)
    return found


def test_a_yes_to_another_card_or_another_amount_is_not_taken(cards: Cards) -> None:
    assert taken_unseen(cards) == []


def test_mutant_that_does_not_compare_digests_takes_every_yes_and_is_caught(cards: Cards) -> None:
    text = str(cards.one("select pg_get_functiondef('refunds.answer_confirmation'::regproc)"))
    fence = "and c.digest = shown_digest"
    assert fence in text
    cards.admin.execute(text.replace(fence, "").encode())
    assert len(taken_unseen(cards)) == 3
