"""Votes on an approval's card: whose counts, when, and once."""

from __future__ import annotations

import re
import uuid
from typing import Any

import pytest

from ops_console.pages import approval_votes
from sentinel.authority import approval_queue
from sentinel.core.errors import EngineUnavailable
from tests.integration.console.approval_pages import ZERO, card, digest_of, digest_on, listed, say, votes
from tests.integration.console.conftest import PASSWORD
from tests.integration.console.test_shown_is_decided import FENCE
from tests.support.orders_console_fixtures import queued, status_and_resolution


def test_a_vote_needs_its_reason_its_digest_its_role_and_a_proof(fixtures: Any) -> None:
    ann, vic, approval_id = fixtures.browser("ann"), fixtures.browser("vic", "viewer"), fixtures.approval()
    address = f"/ops/approvals/{approval_id}"
    shown = digest_on(card(ann, approval_id))

    def tried(browser: Any = ann, **fields: Any) -> tuple[int, str]:
        answer = browser.submit(address, **fields)
        return answer.status_code, answer.get_data(as_text=True)

    whole = {"verdict": "approve", "reason": "looked", "digest": shown}
    assert tried(vic, **whole)[0] == 403
    for broken in (
        {"reason": " "},
        {"digest": ""},
        {"verdict": ""},
        {"verdict": "fulfil"},
        {"reason": "a\u202eb"},
        {"extra": "1"},
    ):
        assert tried(**{**whole, **broken})[0] == 400, broken
    status, page = tried(**whole)
    assert (status, "Your password or code is needed" in page) == (400, True)
    assert 'value="looked"' in page
    assert tried(**whole, proof="wrong")[0] == 400
    assert tried(**{**whole, "verdict": "handled"})[0] == 400
    status, page = tried(**{**whole, "digest": ZERO, "proof": PASSWORD})
    assert (status, "look at it again" in page) == (409, True)
    assert digest_on(page) == shown
    assert votes(fixtures, approval_id) == 0
    assert fixtures.approval_status(approval_id) == "pending"

    answer = ann.submit(address, **whole)
    assert (answer.status_code, answer.headers["Location"]) == (303, address)
    page = card(ann, approval_id)
    assert "Approved." in page
    assert "ann@demo.local" in page
    assert "Nothing else is pending that you can decide." in page

    # The mutant does not compare digests: what was never shown is taken, and that is seen.
    ((function,),) = fixtures.sql("select pg_get_functiondef('sentinel.resolve_approval'::regproc)")
    assert FENCE in function
    fixtures.sql("set role sentinel_owner; " + function.replace(FENCE, ""))
    assert say(ann, fixtures.approval(), digest=ZERO).status_code == 303


def words_counted(fixtures: Any) -> tuple[int, list[int]]:
    """How many words five posts of one form left behind, and what they were answered; the checker of this file."""
    ann, approval_id = fixtures.browser(f"p{uuid.uuid4().hex[:8]}", proved=True), fixtures.approval("600.00")
    answers = [say(ann, approval_id).status_code for _ in range(5)]
    assert fixtures.approval_status(approval_id) == "pending"
    return votes(fixtures, approval_id), answers


def test_a_form_sent_again_is_one_vote_and_no_error(fixtures: Any) -> None:
    assert words_counted(fixtures) == (1, [303] * 5)
    ann, approval_id = fixtures.browser("ann", proved=True), fixtures.approval("600.00")
    assert say(ann, approval_id).status_code == 303
    page = say(ann, approval_id, "reject").get_data(as_text=True)
    assert "another person has to vote" in page
    assert fixtures.approval_status(approval_id) == "pending"

    # The mutant takes one person for several, and is caught.
    fixtures.sql("alter table sentinel.approval_votes drop constraint approval_votes_pkey")
    assert words_counted(fixtures) != (1, [303] * 5)


def test_two_people_are_told_how_far_it_is_and_an_ended_one_cannot_be_decided(fixtures: Any) -> None:
    app = fixtures.app()
    ann, bob, approval_id = (
        fixtures.browser("ann", app=app, proved=True),
        fixtures.browser("bob", app=app, proved=True),
        fixtures.approval("600.00"),
    )
    before = digest_on(card(bob, approval_id))
    assert say(ann, approval_id).status_code == 303
    page = card(ann, approval_id)
    assert "1 of 2 have approved" in page
    assert 'name="verdict"' not in page
    seen_by_bob = card(bob, approval_id)
    assert "1 of 2 people have approved" in seen_by_bob
    assert "ann@demo.local" in seen_by_bob
    assert say(bob, approval_id, digest=before).status_code == 303
    assert "ann@demo.local, bob@demo.local" in card(bob, approval_id)
    cyd = fixtures.browser("cyd", app=app, proved=True)
    late = say(cyd, approval_id, digest=before)
    assert (late.status_code, "decided before" in late.get_data(as_text=True)) == (409, True)

    ended = fixtures.approval("200.00")
    fixtures.sql("update sentinel.approvals set expires_at = clock_timestamp() where approval_id = %s", ended)
    assert "expired" in card(cyd, ended)
    assert say(cyd, ended).status_code == 409
    assert str(ended) not in listed(cyd)


def test_the_next_is_what_this_person_can_decide_behind_whatever_waits_for_others(fixtures: Any) -> None:
    ann = fixtures.operator("ann")
    page = fixtures.at_page(ann.email, proved=True)
    others = [fixtures.approval("600.00") for _ in range(6)]
    for approval_id in others:
        assert say(page, approval_id).status_code == 303
    for change in ("required_role = 'admin'", f"requester_operator_id = '{ann.operator_id}'"):
        others.append(fixtures.approval())
        fixtures.sql(f"update sentinel.approvals set {change} where approval_id = %s", others[-1])
    last, decided = fixtures.approval(), fixtures.approval()
    assert say(page, decided).status_code == 303
    shown = card(page, decided)
    assert "Nothing else is pending" not in shown
    assert re.findall(r'Next in the queue: <a href="/ops/approvals/([^"]+)"', shown) == [str(last)]
    assert listed(page, "?for=me") == [str(last)]
    assert set(listed(page)) == {str(one) for one in (*others, last)}
    assert say(page, last).status_code == 303
    assert "Nothing else is pending that you can decide." in card(page, last)
    assert listed(page, "?for=me") == []
    # An account that another person changed since, and one that only looks, can decide none of them.
    fixtures.operator("new", since="infinity")
    assert listed(fixtures.at_page("new@demo.local"), "?for=me") == []
    assert listed(fixtures.browser("vic", "viewer"), "?for=me") == []
    assert page.get("/ops/approvals?for=you").status_code == 400


WATCHED = """
create table public.looked (up_to timestamptz not null);
insert into public.looked values ('-infinity');
grant select on public.looked to public;
create or replace function sentinel.is_requester(a sentinel.approvals, operator uuid) returns boolean language plpgsql stable as $$
  begin
    if a.status = 'pending' and a.expires_at > (select up_to from public.looked) then raise 'looked too far'; end if;
    return a.resource <> 'refund/mine';
  end
$$;
"""
"""A person is the requester of everything but `refund/mine`, and a look at what expires behind `up_to` fails."""


def test_what_a_person_can_decide_is_looked_for_in_a_bounded_part_of_the_queue_at_a_time(
    fixtures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, decided = fixtures.browser("ann", "admin", proved=True), fixtures.approval()
    assert say(page, decided).status_code == 303
    waiting = [fixtures.approval() for _ in range(13)]
    fixtures.sql("update sentinel.approvals set resource = 'refund/mine' where approval_id = %s", waiting[-1])
    fixtures.sql(WATCHED)
    monkeypatch.setattr(approval_queue, "MOST_LOOKED", 5)

    def look_up_to(approval_id: uuid.UUID) -> None:
        fixtures.sql(
            "update public.looked set up_to = (select expires_at from sentinel.approvals where approval_id = %s)",
            approval_id,
        )

    look_up_to(waiting[4])
    shown = card(page, decided)
    assert "Nothing else is pending" not in shown
    assert "You can decide none of the next 5" in shown
    address, seen = "/ops/approvals?for=me", []
    for last in (waiting[4], waiting[9], waiting[12]):
        look_up_to(last)
        answer = page.get(address)
        assert answer.status_code == 200
        assert "Nothing is pending that you can decide." not in answer.text
        seen += re.findall(r'<a href="/ops/approvals/([0-9a-f-]{36})[?"]', answer.text)
        (address,) = re.findall(r'class="older"><a [^>]*href="([^"]+)"', answer.text) or ("",)
        address = address.replace("&amp;", "&")
    assert (seen, address) == ([str(waiting[12])], "")


def test_a_card_is_shown_where_the_next_one_cannot_be_found(fixtures: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    page, decided = fixtures.browser("ann", proved=True), fixtures.approval()
    assert say(page, decided).status_code == 303
    whole = approval_queue.all_rows

    def too_slow(pool: Any, kind: Any, statement: str, fields: Any) -> Any:
        if "sentinel.is_requester(" in statement:
            raise EngineUnavailable("canceling statement due to statement timeout")
        return whole(pool, kind, statement, fields)

    monkeypatch.setattr(approval_queue, "all_rows", too_slow)
    shown = card(page, decided)
    assert "Approved." in shown
    assert "Next in the queue" not in shown and "Nothing else is pending" not in shown


def test_whoever_answers_for_the_asking_key_decides_nothing_on_the_pages(fixtures: Any) -> None:
    owner = fixtures.operator("owner", "admin")
    approval_id = fixtures.approval(owner=owner)
    browser = fixtures.at_page(owner.email, proved=True)
    assert say(browser, approval_id).status_code == 403
    assert say(browser, approval_id, "reject").status_code == 403
    batch = browser.submit(
        "/ops/approvals/batch",
        id=str(approval_id),
        digest=digest_of(browser, approval_id),
        verdict="approve",
        reason="x",
    )
    assert "you own, made or rotated the key that requested this" in batch.get_data(as_text=True)
    assert votes(fixtures, approval_id) == 0


def test_who_releases_an_order_is_not_told_that_it_is_fulfilled(fixtures: Any) -> None:
    """The finding: it said so while the order was still queued, and the authority or the shop could refuse it."""
    order_id, ann = queued(fixtures), fixtures.browser("ann")
    (approval_id,) = fixtures.sql("select approval_id from orders.reviews where order_id = %s", order_id)[0]
    assert "The shop is asked to fulfil the order, exactly as shown here." in card(ann, approval_id)
    assert say(ann, approval_id, "fulfil", proof=PASSWORD).status_code == 303
    page = card(ann, approval_id)
    assert "Released. Everything is checked again; then the shop is asked to fulfil the order." in page
    assert "The order is fulfilled" not in page
    assert status_and_resolution(fixtures, order_id) == ("QUEUED", "fulfil")


def test_an_orders_card_has_its_signals_fenced_and_the_analysts_choices(fixtures: Any) -> None:
    app = fixtures.app()
    for decision, ends in (("fulfil", "QUEUED"), ("refund", "REFUND_FILED"), ("hold", "HELD")):
        order_id, ann = queued(fixtures), fixtures.browser(f"analyst-{decision}", app=app)
        (approval_id,) = fixtures.sql("select approval_id from orders.reviews where order_id = %s", order_id)[0]
        page = card(ann, approval_id)
        assert re.findall(r'name="verdict" value="(\w+)"', page) == ["fulfil", "refund", "hold"]
        assert "billing GB, shipping NG" in re.findall(r'<figure class="untrusted">.*?</figure>', page, re.S)[0]
        assert "secret@x.example" not in page
        assert say(ann, approval_id, "reject").status_code == 400
        if decision != "hold":
            assert say(ann, approval_id, decision).status_code == 400
        for _ in range(2):
            assert say(ann, approval_id, decision, proof=PASSWORD).status_code == 303
        assert status_and_resolution(fixtures, order_id) == (ends, decision)
        assert votes(fixtures, approval_id) == 1
        assert approval_votes.REPEATED in card(ann, approval_id)
