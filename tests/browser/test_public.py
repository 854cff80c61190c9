"""What anybody may see, in a real browser: the board as it changes, proofs checked by the viewer, the widget, a customer's card."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import threading
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from playwright.sync_api import expect

from sentinel.core.proof import pack_hash
from sentinel.store.ids import proof_id_of
from tests.browser.conftest import PHONE, People
from tests.browser.line import line_to
from tests.browser.place import Place
from tests.browser.watch import Watch
from tests.integration.console.test_public_identifiers import ask

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.xdist_group("browser")]


def guards(place: Place, *values: str) -> list[str]:
    """Proof ids of decisions that are published now, in order."""
    made = [place.fixtures.guard(value).operation_id for value in values]
    place.fixtures.publish()
    kept = dict(
        place.fixtures.sql(
            "select operation_id, event_id from sentinel.events where kind = 'decision' and operation_id = any(%s)",
            made,
        )
    )
    return [proof_id_of(kept[one]) for one in made]


@contextlib.contextmanager
def a_shop(html: str) -> Iterator[str]:
    """Another site's page; its address. Another name of this machine is another site to a browser."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(html.encode())

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://localhost:{server.server_port}/"
    server.shutdown()
    server.server_close()


def shown(page: Any) -> list[str]:
    """Proof ids of the board's rows, newest first."""
    return [
        link.rpartition("/")[2] for link in page.locator("#events a").evaluate_all("(all) => all.map((a) => a.href)")
    ]


def test_the_board_shows_decisions_as_they_are_made_and_after_a_cut_none_is_lost_or_doubled(
    people: People, place: Place, watch: Watch
) -> None:
    watch.expect("request failed.*/live/", "console: Failed to load resource: net::ERR_")
    with line_to(place.board) as line:
        watch.hosts.append(line.url)
        page = people.visitor()
        page.goto(f"{line.url}/live")
        expect(page.locator("#state")).to_have_text("Live")
        (first,) = guards(place, "11.00")
        expect(page.locator(f"#events a[href$='{first}']")).to_be_visible()
        expect(page.locator("#events tr").first).to_contain_text("11.00 USD")

        line.cut()
        expect(page.locator("#state")).to_have_text("Reconnecting…")
        missed = guards(place, "12.00", "13.00", "2100.00")
        line.mend()
        for one in missed:
            expect(page.locator(f"#events a[href$='{one}']")).to_have_count(1)
        expect(page.locator("#state")).to_have_text("Live")
        # The stream begins again behind the last one seen: each once, in order.
        rows = shown(page)
        assert rows[:4] == [*reversed(missed), first]
        assert len(rows) == len(set(rows))
        page.close()


def test_the_boards_stream_can_be_held_to_read_it(place: Place, visitor: Any) -> None:
    visitor.goto("/live")
    expect(visitor.locator("#state")).to_have_text("Live")
    visitor.get_by_role("button", name="Pause").click()
    before = shown(visitor)
    (one,) = guards(place, "14.00")
    visitor.wait_for_timeout(1500)
    assert shown(visitor) == before
    visitor.get_by_role("button", name="Resume").click()
    expect(visitor.locator(f"#events a[href$='{one}']")).to_be_visible()


def test_an_open_board_is_fetched_again_when_it_is_another_tenants(people: People, place: Place, watch: Watch) -> None:
    watch.expect("request failed.*/live/", "console: Failed to load resource: net::ERR_")
    with line_to(place.board) as line:
        watch.hosts.append(line.url)
        page = people.visitor()
        page.goto(f"{line.url}/live")
        expect(page.locator("#state")).to_have_text("Live")
        line.cut()
        expect(page.locator("#state")).to_have_text("Reconnecting…")
        # As if it had been opened while the board was another tenant's. Before the cut the page's own refresh could notice it.
        page.locator("#events").evaluate("(one) => { one.dataset.tenant = 'acme'; one.dataset.before = 'yes'; }")
        line.mend()
        expect(page.locator("#events")).to_have_attribute("data-tenant", "public-demo", timeout=60_000)
        assert page.locator("#events").get_attribute("data-before") is None
        expect(page.locator("#state")).to_have_text("Live")
        page.close()


def test_an_open_board_is_fetched_again_when_what_it_shows_is_gone_from_the_feed(place: Place, visitor: Any) -> None:
    def made_before_a_restore(route: Any) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, body=re.sub(r'data-position="\d+"', 'data-position="999999999"', answer.text()))

    visitor.route(f"{place.board}/live", made_before_a_restore, times=1)
    visitor.goto(f"{place.board}/live")
    expect(visitor.locator("#events")).to_have_attribute("data-position", "999999999")
    expect(visitor.locator("#events")).not_to_have_attribute("data-position", "999999999", timeout=60_000)
    expect(visitor.locator("#state")).to_have_text("Live")


def test_a_proof_is_checked_in_the_viewers_browser_and_a_tampered_one_fails(place: Place, visitor: Any) -> None:
    visitor.goto(place.paths["proof"])
    visitor.get_by_role("button", name="Verify in this browser").click()
    told = visitor.locator("#verify-result")
    expect(told).to_contain_text("Match: this proof is intact.")
    pack = json.loads(visitor.request.get(f"{place.paths['proof']}.json").text())
    expect(told).to_contain_text(pack["hash"])
    expect(told.locator("pre.bytes")).to_contain_text(pack["proof_id"])

    def paste(text: str) -> Any:
        visitor.get_by_label("The proof as JSON").fill(text)
        visitor.get_by_role("button", name="Verify", exact=True).click()
        return visitor.locator("#paste-result")

    # Order and blanks do not count, the content does.
    expect(paste(json.dumps(dict(reversed(pack.items())), indent=2))).to_contain_text("Match: this proof is intact.")
    changed = {**pack, "decision": "ALLOW" if pack["decision"] != "ALLOW" else "DENY"}
    expect(paste(json.dumps(changed))).to_contain_text("No match: this proof was changed.")
    expect(visitor.locator("#paste-result")).to_contain_text("decision differs")
    # A forger recomputes the hash; the record does not know it.
    body = json.dumps(
        {k: v for k, v in changed.items() if k != "hash"}, sort_keys=True, separators=(",", ":"), ensure_ascii=False
    )
    forged = {**changed, "hash": "sha256:" + hashlib.sha256(body.encode()).hexdigest()}
    expect(paste(json.dumps(forged))).to_contain_text("this is not the proof with that id")
    expect(paste("{not json")).to_contain_text("it is not JSON")
    # Programs that keep the first of two read another decision than those that keep the last.
    twice = json.dumps(pack).replace("{", '{"decision": "ALLOW", ', 1)
    expect(paste(twice)).to_contain_text('No match: it names "decision" more than once')


def test_the_pack_that_an_agent_was_given_is_checked_against_the_public_one(place: Place, visitor: Any) -> None:
    recorded = place.fixtures.guard("16.00")
    pack = {**json.loads(recorded.pack), "hash": recorded.pack_hash}
    visitor.goto("/verify/")

    def paste(pack: dict[str, Any]) -> Any:
        visitor.get_by_label("The proof as JSON").fill(json.dumps(pack))
        visitor.get_by_role("button", name="Verify", exact=True).click()
        return visitor.locator("#paste-result")

    told = paste(pack)
    expect(told).to_contain_text("Match: this proof is intact.")
    expect(told).to_contain_text("were not compared: ledger_entry_id, refund_id")
    forged = {**pack, "decision": "DENY"}
    told = paste({**forged, "hash": pack_hash(forged)})
    expect(told).to_contain_text("this is not the proof with that id")
    expect(told).to_contain_text("decision differs")


def test_a_given_pack_whose_action_is_public_by_its_pattern_is_the_one_on_record(place: Place, visitor: Any) -> None:
    """The finding: the pattern counted as a difference, and a genuine pack was said to be forged."""
    recorded = ask(place.fixtures, action="data.read")
    pack = {**json.loads(recorded.pack), "hash": recorded.pack_hash}
    visitor.goto("/verify/")
    told = visitor.locator("#paste-result")

    def paste(pack: dict[str, Any]) -> None:
        visitor.get_by_label("The proof as JSON").fill(json.dumps(pack))
        visitor.get_by_role("button", name="Verify", exact=True).click()
        expect(told).to_contain_text(pack["hash"])

    paste(pack)
    expect(told).to_contain_text("Match: this proof is intact.")
    expect(told).to_contain_text("were not compared: ledger_entry_id, refund_id")
    expect(told).to_contain_text("The action is public by its pattern: data.*")
    for other in ("email.send", "data", "database.read", 7):
        forged = {**pack, "action": other}
        paste({**forged, "hash": pack_hash(forged)})
        expect(told).to_contain_text("this is not the proof with that id")
        expect(told).to_contain_text("action differs")


@pytest.mark.parametrize(
    "answer",
    [{"status": 503, "body": "{}"}, {"status": 200, "body": "<p>Sign in to the network</p>"}, None],
    ids=["503", "another's page", "no connection"],
)
def test_a_pasted_proof_is_no_match_while_the_record_cannot_be_asked(
    place: Place, visitor: Any, watch: Watch, answer: dict[str, Any] | None
) -> None:
    """The finding: that nobody answered counted as "not on record", and a forged proof was said to be intact."""
    watch.expect(r"status 503: .*\.json", r"request failed: .*\.json", r"console: .*ERR_FAILED")
    pack = json.loads(visitor.request.get(f"{place.paths['proof']}.json").text())
    forged = {**pack, "decision": "ALLOW" if pack["decision"] != "ALLOW" else "DENY"}
    visitor.goto("/verify/")
    told = visitor.locator("#paste-result")

    def paste(pack: dict[str, Any]) -> None:
        visitor.get_by_label("The proof as JSON").fill(json.dumps(pack))
        visitor.get_by_role("button", name="Verify", exact=True).click()

    visitor.route("**/verify/*.json", lambda route: route.fulfill(**answer) if answer else route.abort("failed"))
    for intact in ({**forged, "hash": pack_hash(forged)}, pack):
        paste(intact)
        expect(told).to_contain_text(intact["hash"])
        expect(told).to_contain_text("could not be compared with what is on record here now")
        expect(told.locator(".said.warning")).to_have_count(2)
        expect(told.locator(".said.done")).to_have_count(0)
        expect(told).not_to_contain_text("Match")
    paste(forged)
    expect(told).to_contain_text("No match: this proof was changed.")
    visitor.unroute("**/verify/*.json")
    paste({**forged, "hash": pack_hash(forged)})
    expect(told).to_contain_text("this is not the proof with that id")


def test_a_proof_that_the_server_tampered_with_on_its_way_fails(place: Place, visitor: Any) -> None:
    def tamper(route: Any) -> None:
        pack = json.loads(route.fetch().text())
        route.fulfill(json={**pack, "agent_label": "somebody else"})

    visitor.route("**/verify/*.json", tamper)
    visitor.goto(place.paths["proof"])
    visitor.get_by_role("button", name="Verify in this browser").click()
    expect(visitor.locator("#verify-result")).to_contain_text("No match: this proof was changed.")


def test_another_proof_than_the_page_shows_is_no_match_however_intact(place: Place, visitor: Any) -> None:
    (other,) = guards(place, "1234.50")
    fetched = visitor.request.get(f"/verify/{other}.json").text()
    visitor.route("**/verify/*.json", lambda route: route.fulfill(body=fetched, content_type="application/json"))
    visitor.goto(place.paths["proof"])
    visitor.get_by_role("button", name="Verify in this browser").click()
    told = visitor.locator("#verify-result")
    expect(told).to_contain_text("this is not the proof this page shows")
    expect(told).to_contain_text("hash differ")
    visitor.goto(f"/verify/{other}")
    visitor.get_by_role("button", name="Verify in this browser").click()
    expect(told).to_contain_text("Match: this proof is intact.")


def test_each_decision_of_the_board_opens_its_proof(place: Place, visitor: Any) -> None:
    visitor.goto("/live")
    link = visitor.locator("#events a").first
    proof = link.get_attribute("href").rpartition("/")[2]
    link.click()
    expect(visitor.get_by_role("heading", name="Proof of a decision")).to_be_visible()
    expect(visitor.locator("main")).to_contain_text(proof)


def test_the_widget_lives_in_another_sites_page_and_other_pages_do_not(
    people: People, place: Place, watch: Watch
) -> None:
    watch.expect(
        "frame-ancestors|Refused to display|refused to connect", "request failed.*/live .*ERR_BLOCKED_BY_RESPONSE"
    )
    frames = "".join(
        f'<iframe src="{place.board}{path}" width="600" height="400"></iframe>' for path in ("/live/widget", "/live")
    )
    with a_shop(f"<!doctype html><link rel=icon href=data:,><title>A shop</title>{frames}") as shop:
        watch.hosts.append(shop)
        page = people.visitor()
        page.goto(shop)
        widget = page.frame_locator("iframe >> nth=0")
        expect(widget.get_by_role("heading", name="Live decisions")).to_be_visible()
        expect(widget.locator("#state")).to_have_text("Live")
        (one,) = guards(place, "15.00")
        expect(widget.locator(f"a[href$='{one}']")).to_be_visible()
        assert page.context.cookies() == []
        expect(page.frame_locator("iframe >> nth=1").locator("#events")).to_have_count(0)
        page.close()


def test_a_proof_that_was_opened_from_the_widget_checks_what_is_pasted(
    people: People, place: Place, watch: Watch
) -> None:
    board = people.visitor()
    board.goto(f"{place.board}/live")
    markup = board.get_by_label("The widget's markup").evaluate("(one) => one.textContent")
    pack = board.request.get(f"{place.board}{place.paths['proof']}.json").text()
    board.close()
    with a_shop(f"<!doctype html><link rel=icon href=data:,><title>A shop</title>{markup}") as shop:
        watch.hosts.append(shop)
        page = people.visitor()
        page.goto(shop)
        (one,) = guards(place, "15.25")
        with page.expect_popup() as opened:
            page.frame_locator("iframe").locator(f"a[href$='{one}']").click()
        proof = opened.value
        proof.get_by_label("The proof as JSON").fill(pack)
        proof.get_by_role("button", name="Verify", exact=True).click()
        expect(proof.locator("#paste-result")).to_contain_text("Match: this proof is intact.")
        page.close()


def test_the_widgets_counts_go_on_while_it_says_live(place: Place, visitor: Any) -> None:
    visitor.goto("/live/widget")
    expect(visitor.locator("#state")).to_have_text("Live")
    counts = visitor.get_by_role("list", name="The last hour")
    allowed = counts.get_by_role("listitem").filter(has_text="Allowed").locator("strong")
    before = int(allowed.inner_text().replace(",", ""))
    guards(place, "15.50")
    number = (
        "() => Number(document.querySelector('[aria-label=\"The last hour\"] strong').textContent.replaceAll(',', ''))"
    )
    visitor.wait_for_function(f"(before) => ({number})() > before", arg=before, timeout=60_000)
    expect(visitor.locator("#state")).to_have_text("Live")


def test_a_customer_answers_the_card_on_a_phone_and_once(people: People, place: Place) -> None:
    name = f"card-{uuid.uuid4().hex[:8]}"
    place.cards.waiting(name, value=980)
    page = people.visitor(viewport=PHONE, is_mobile=True, has_touch=True)
    path = place.cards.link(name)
    page.goto(path)
    assert "9.80" in page.locator("main").inner_text()
    assert place.cards.status(name) == "pending", "looking answers nothing"
    button = page.get_by_role("button").first
    assert button.bounding_box()["height"] >= 44, "a thumb must hit it"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    button.tap()
    expect(page.get_by_role("button")).to_have_count(0)
    assert place.cards.status(name) == "confirmed"
    page.goto(path)
    expect(page.get_by_role("button")).to_have_count(0)
    assert place.cards.status(name) == "confirmed"
