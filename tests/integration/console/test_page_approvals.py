"""The queue as a page: what is looked at first, when it is quiet, and several decided at once."""

from __future__ import annotations

import html
import re
import uuid
from typing import Any

import pytest

from ops_console.pages import approval_votes
from sentinel.authority import approval_queue
from tests.integration.console.approval_pages import ZERO, card, digest_of, listed, say, votes
from tests.integration.console.conftest import PASSWORD


def test_the_queue_is_by_risk_then_by_what_runs_out_and_pages_without_gap(
    fixtures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ops_console.pages.approvals.PAGE", 2)
    late, two_people, soon, plain = (fixtures.approval(value) for value in ("200.00", "600.00", "210.00", "220.00"))
    fraud = fixtures.approval("230.00")
    fixtures.sql(
        "update sentinel.approvals set expires_at = expires_at - interval '9 min' where approval_id = %s", soon
    )
    fixtures.sql("update sentinel.approvals set reasons = '{outside_window}' where approval_id = %s", plain)
    fixtures.sql("update sentinel.approvals set reasons = '{critic_instructions}', expires_at = expires_at + interval '5 min'"
              " where approval_id = %s", fraud)  # fmt: skip
    ann = fixtures.browser("ann")
    seen, address = [], ""
    while True:
        page = ann.get(f"/ops/approvals{address}").get_data(as_text=True)
        found = re.findall(r'<a href="/ops/approvals/([0-9a-f-]{36})">', page)
        seen += found
        older = re.search(r'href="/ops/approvals(\?[^"]+)">More', page)
        if older is None:
            break
        assert len(found) == 2
        address = html.unescape(older[1])
    assert seen == [str(one) for one in (two_people, fraud, soon, late, plain)]

    assert listed(ann, "?kind=escalation") == [str(fraud), str(plain)]
    assert listed(ann, "?kind=order") == []
    assert ann.get("/ops/approvals?kind=nothing").status_code == 400
    assert ann.get("/ops/approvals?cursor=nonsense").status_code == 400

    say(ann, plain, "reject")
    say(ann, late, "handled", reference="ticket 7")
    assert listed(ann, "?status=decided") == [str(late), str(plain)]
    assert listed(ann, "?status=handled") == [str(late)]
    assert listed(ann, "?status=rejected") == [str(plain)]
    assert str(plain) not in listed(ann)


def test_of_what_was_decided_a_rare_kind_is_found_part_by_part_and_changes_at_once(
    fixtures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approval_queue, "MOST_DECIDED", 2)
    rare, change, *others = (fixtures.approval(value) for value in ("200.00", "210.00", "220.00", "230.00"))
    fixtures.sql("update sentinel.approvals set reasons = '{critic_instructions}' where approval_id = %s", rare)
    ann = fixtures.browser("ann")
    for approval_id in (rare, change, *others):
        say(ann, approval_id, "reject")
    fixtures.sql("insert into sentinel.protected_changes (tenant_id, approval_id, request) values (%s, %s, '{}')",
              fixtures.tenant_id, change)  # fmt: skip
    first = ann.get("/ops/approvals?status=decided&kind=escalation").get_data(as_text=True)
    assert "None of these 2 decided approvals is of this kind." in first
    (older,) = re.findall(r'href="/ops/approvals(\?[^"]+)">Older', first)
    assert listed(ann, html.unescape(older)) == [str(rare)]
    for asked, said in (
        ("agent=nobody", "of this agent"),
        ("agent=nobody&kind=escalation", "of this kind and of this agent"),
    ):
        page = ann.get(f"/ops/approvals?status=decided&{asked}").get_data(as_text=True)
        assert f"None of these 2 decided approvals is {said}." in page
    assert listed(ann, "?status=rejected&kind=refund") == [str(one) for one in reversed(others)]
    assert listed(ann, "?status=decided&kind=change") == [str(change)]
    assert listed(ann, "?status=handled&kind=change") == []


def test_the_queue_shows_what_one_agent_asked(fixtures: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ops_console.pages.approvals.PAGE", 1)
    mine, first, second = (fixtures.approval(value) for value in ("200.00", "210.00", "220.00"))
    fixtures.sql(
        "update sentinel.approvals set agent_id = 'another-agent' where approval_id = any(%s)", [first, second]
    )
    ann = fixtures.browser("ann")
    page = ann.get("/ops/approvals?agent=another-agent").get_data(as_text=True)
    assert 'name="agent" type="search" value="another-agent"' in page
    assert 'href="/ops/approvals?agent=another-agent&amp;for=me"' in page
    (more,) = re.findall(r'href="/ops/approvals(\?[^"]+)">More', page)
    assert listed(ann, "?agent=another-agent") == [str(first)]
    assert listed(ann, html.unescape(more)) == [str(second)]
    assert listed(ann, "?agent=another-agent&for=me") == [str(first)]
    assert listed(ann, "?agent=retail-refund-agent&kind=refund") == [str(mine)]
    assert listed(ann, "?agent=nobody") == []
    say(ann, mine, "reject")
    assert listed(ann, "?agent=retail-refund-agent&status=decided") == [str(mine)]
    assert listed(ann, "?agent=another-agent&status=decided") == []
    assert ann.get("/ops/approvals?agent=no%20agent").status_code == 400


def test_a_filter_of_the_queue_is_kept_by_cards_by_what_is_next_and_by_batches(fixtures: Any) -> None:
    """The finding: after each decision the next card was of the whole queue, and the way back led to all of it."""
    fraud, first, second = (fixtures.approval(value) for value in ("200.00", "210.00", "220.00"))
    fixtures.sql("update sentinel.approvals set reasons = '{critic_instructions}' where approval_id = %s", fraud)
    ann, kept = fixtures.browser("ann"), "?kind=refund&for=me"
    shown = html.escape(kept)

    def page(address: str) -> str:
        answer = ann.get(address)
        assert answer.status_code == 200, answer.text
        return str(answer.text)

    queue = page(f"/ops/approvals{kept}")
    assert f'<a href="/ops/approvals/{first}{shown}">' in queue and str(fraud) not in queue
    assert queue.count('<input type="hidden" name="for" value="me">') == 2, "of the filter and of the batch"
    assert f'href="/ops/approvals{shown}">Show the current queue' in page(f"/ops/approvals/standing{kept}&seen=x")
    assert f'href="/ops/approvals/{first}{shown}">Show' in page(f"/ops/approvals/{first}/state{kept}&seen=x")

    open_card = page(f"/ops/approvals/{first}{kept}")
    assert f'<a href="/ops/approvals{shown}">Approvals</a>' in open_card
    assert f'action="/ops/approvals/{first}{shown}#refused"' in open_card
    refused = ann.submit(f"/ops/approvals/{first}{kept}", verdict="reject", reason="", digest=digest_of(ann, first))
    assert refused.status_code == 400 and f'action="/ops/approvals/{first}{shown}#refused"' in refused.text
    done = ann.submit(f"/ops/approvals/{first}{kept}", verdict="reject", reason="no", digest=digest_of(ann, first))
    assert (done.status_code, done.headers["Location"]) == (303, f"/ops/approvals/{first}{kept}")
    assert f'Next in the queue: <a href="/ops/approvals/{second}{shown}">' in page(done.headers["Location"])

    assert f'action="/ops/approvals/batch{shown}#refused"' in page(f"/ops/approvals/batch{kept}&id={second}")
    fields = {"id": str(second), "digest": digest_of(ann, second), "verdict": "reject", "reason": "no"}
    results = ann.submit(f"/ops/approvals/batch{kept}", **fields)
    assert "1 of 1 decision was recorded" in results.text
    assert f'<a href="/ops/approvals{shown}">Approvals</a>' in results.text
    assert "Nothing else that your filter selects is pending" in page(f"/ops/approvals/{second}{kept}")
    assert f'Next in the queue: <a href="/ops/approvals/{fraud}">' in page(f"/ops/approvals/{second}")
    assert ann.get(f"/ops/approvals/{second}?kind=nothing").status_code == 400


def test_the_queue_says_when_it_changed_and_is_silent_otherwise(fixtures: Any) -> None:
    ann, first = fixtures.browser("ann"), fixtures.approval()
    page = ann.get("/ops/approvals").get_data(as_text=True)
    (address,) = re.findall(r'role="status" hx-get="(/ops/approvals/standing[^"]+)"', page)
    assert "data-stale-note hidden>Whether the queue has changed could not be checked." in page
    assert ann.get(address).status_code == 204
    fixtures.approval()
    assert "2 are pending now" in ann.get(address).get_data(as_text=True)
    shown = card(ann, first)
    assert "data-stale-note hidden>Whether this has changed meanwhile could not be checked." in shown
    (mark,) = re.findall(r'hx-get="(/ops/approvals/[^"]+/state[^"]+)"', shown)
    assert ann.get(mark).status_code == 204
    say(fixtures.browser("bob", proved=True), first)
    told = ann.get(mark).get_data(as_text=True)
    assert "data-closes-form" in told
    assert "approved by bob@demo.local" in told


def test_the_queue_is_counted_up_to_a_bound_and_still_says_when_something_is_asked(
    fixtures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approval_queue, "MOST_COUNTED", 2)
    ann = fixtures.browser("ann")
    for expected in ("1 is pending now", "2 are pending now", "2 or more are pending now", "2 or more are pending now"):
        page = ann.get("/ops/approvals").get_data(as_text=True)
        (address,) = re.findall(r'hx-get="(/ops/approvals/standing[^"]+)"', page)
        assert ann.get(address).status_code == 204
        fixtures.approval()
        assert f"queue has changed: {expected}" in ann.get(address).get_data(as_text=True)


def test_a_batch_resolves_each_on_its_own_and_tells_each(fixtures: Any) -> None:
    made = [fixtures.approval(value) for value in ("200.00", "210.00", "220.00", "230.00")]
    ann, query = fixtures.browser("ann"), "&".join(f"id={one}" for one in made)
    page = ann.get(f"/ops/approvals/batch?{query}").get_data(as_text=True)
    digests = re.findall(r'name="digest" value="([^"]+)"', page)
    assert re.findall(r'name="id" value="([^"]+)"', page) == [str(one) for one in made]
    assert page.count('<option value="">leave out</option>') == 4
    whole: dict[str, Any] = {"id": [str(one) for one in made], "digest": digests, "reason": "the same case"}

    def tried(*words: str, **more: Any) -> Any:
        return ann.submit("/ops/approvals/batch", **{**whole, "verdict": list(words), **more})

    assert tried("approve", "reject", "", "reject").status_code == 400, "no proof"
    assert tried("reject", "", "", "", reason="").status_code == 400
    assert tried("", "", "", "").status_code == 400
    assert tried("reject").status_code == 400
    assert tried("reject", "all", "", "").status_code == 400
    assert tried("handled", "", "", "").status_code == 400
    assert tried("reject", "reject", "", "", id=[str(made[0])] * 4).status_code == 400
    assert sum(votes(fixtures, one) for one in made) == 0

    say(fixtures.browser("bob"), made[3], "reject")
    stale = [digests[0], ZERO, digests[2], digests[3]]
    answer = tried("approve", "approve", "", "approve", digest=stale, proof=PASSWORD)
    told = answer.get_data(as_text=True)
    assert answer.status_code == 200
    assert "1 of 3 decisions were recorded; 1 left out" in told
    assert "look at it again" in told
    assert "decided before" in told
    assert [fixtures.approval_status(one) for one in made] == ["approved", "pending", "pending", "rejected"]
    again = tried("approve", "", "", "").get_data(as_text=True)
    assert approval_votes.REPEATED in again
    assert votes(fixtures, made[0]) == 1


def test_what_was_selected_beyond_a_batch_is_kept_and_comes_after_it(
    fixtures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The finding: with 21 of 50 rows selected the page only said that 20 are the most, and the selection was gone."""
    made = [str(fixtures.approval(value)) for value in ("200.00", "210.00", "220.00")]
    ann = fixtures.browser("ann")
    assert "at most 20 at once; what else you select comes after them" in ann.get("/ops/approvals").text
    monkeypatch.setattr("ops_console.pages.approval_batch.MOST_TOGETHER", 2)
    page = ann.get("/ops/approvals/batch?kind=refund&" + "&".join(f"id={one}" for one in made)).text
    assert re.findall(r'name="id" value="([^"]+)"', page) == made[:2]
    rest = f"/ops/approvals/batch?kind=refund&id={made[2]}"
    assert (
        f'At most 2 are listed at once. <a href="{html.escape(rest)}">1 more that you selected comes after these</a>.'
        in page
    )
    fields: dict[str, Any] = {"id": made[:2], "digest": [digest_of(ann, one) for one in made[:2]], "later": made[2]}
    refused = ann.submit("/ops/approvals/batch?kind=refund", **fields, verdict=["reject", ""], reason="")
    assert refused.status_code == 400
    assert re.findall(r'name="later" value="([^"]+)"', page) == re.findall(
        r'name="later" value="([^"]+)"', refused.text
    )
    done = ann.submit("/ops/approvals/batch?kind=refund", **fields, verdict=["reject", ""], reason="no").text
    assert f'href="{html.escape(rest)}">Go on with 1 more that you selected</a>' in done
    last = ann.get(rest).text
    assert re.findall(r'name="id" value="([^"]+)"', last) == [made[2]]
    assert "more that you selected" not in last


def test_a_batch_of_which_nothing_can_be_decided_has_no_form_to_fill_in(fixtures: Any) -> None:
    """The finding: where others had decided all of it meanwhile, a reason could be written and was lost when it was sent."""
    first, second = fixtures.approval("200.00"), fixtures.approval("210.00")
    ann, bob, nothing = fixtures.browser("ann"), fixtures.browser("bob"), "You can decide none of these now."
    address = f"/ops/approvals/batch?id={first}&id={second}"
    say(bob, first, "reject")
    page = ann.get(address).text
    assert "<button>Decide these</button>" in page and nothing not in page
    say(bob, second, "reject")
    page = ann.get(address).text
    assert "<button>Decide these</button>" not in page and nothing in page and 'name="reason"' not in page


def test_a_batch_is_bounded_for_approvers_and_reaches_no_other_tenant(fixtures: Any) -> None:
    ann, vic = fixtures.browser("ann", proved=True), fixtures.browser("vic", "viewer")
    many = "&".join(f"id={uuid.uuid4()}" for _ in range(51))
    answer = ann.get(f"/ops/approvals/batch?{many}")
    assert (answer.status_code, "at most 50" in answer.get_data(as_text=True)) == (400, True)
    assert 'href="/ops/approvals">back to the page' in answer.get_data(as_text=True)
    assert ann.get("/ops/approvals/batch").status_code == 303
    assert vic.get(f"/ops/approvals/batch?{many}").status_code == 403
    assert vic.submit("/ops/approvals/batch", reason="x").status_code == 403
    lines = {name: [value] * 21 for name, value in (("digest", ZERO), ("verdict", ""))}
    sent = ann.submit("/ops/approvals/batch", id=[str(uuid.uuid4()) for _ in range(21)], reason="x", **lines)
    assert (sent.status_code, "at most 20" in sent.text) == (400, True)

    approval_id = fixtures.approval(tenant_id=fixtures.tenant("other"))
    assert ann.get(f"/ops/approvals/{approval_id}").status_code == 404
    assert ann.get(f"/ops/approvals/{approval_id}/state?seen=x").status_code == 404
    assert listed(ann) == []
    fields = {"verdict": "reject", "reason": "x", "digest": ZERO}
    assert ann.submit(f"/ops/approvals/{approval_id}", **fields).status_code == 404
    batch = ann.submit("/ops/approvals/batch", id=str(approval_id), **fields).get_data(as_text=True)
    assert "there is no approval with this id" in batch
    assert fixtures.approval_status(approval_id) == "pending"
