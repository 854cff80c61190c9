"""The queue and the cards as pages: what is looked at first, what a card shows and hides, and whose word counts when."""

from __future__ import annotations

import html
import json
import re
import uuid
from pathlib import Path
from typing import Any

import pytest
from markupsafe import Markup

from ops_console.pages import approval_words, text
from ops_console.pages.approval_facts import facts_of
from sentinel.core.canonical import canonical_json, sha256_hex
from tests.integration.console.conftest import PASSWORD
from tests.integration.console.test_page_policies import BARE, SOURCE, with_odd_policy
from tests.integration.console.test_page_policies import words as words_of
from tests.integration.console.test_shown_is_decided import FENCE
from tests.orders_console_world import queued, standing

ZERO = "sha256:" + "0" * 64


def card(browser: Any, approval_id: Any) -> str:
    answer = browser.get(f"/ops/approvals/{approval_id}")
    assert answer.status_code == 200, answer.get_data(as_text=True)
    return str(answer.get_data(as_text=True))


def digest_on(page: str) -> str:
    """The digest that the form would post back."""
    return re.findall(r'name="digest" value="([^"]+)"', page)[0]


def say(browser: Any, approval_id: Any, verdict: str = "approve", **more: Any) -> Any:
    """Give a word on what is shown now."""
    fields = {"verdict": verdict, "reason": "looked at it", "digest": digest_of(browser, approval_id), **more}
    return browser.submit(f"/ops/approvals/{approval_id}", **fields)


def digest_of(browser: Any, approval_id: Any) -> str:
    return str(browser.get(f"/ops/api/approvals/{approval_id}").json["digest"])


def listed(browser: Any, query: str = "") -> list[str]:
    """The ids of the queue's page, in its order."""
    page = browser.get(f"/ops/approvals{query}").get_data(as_text=True)
    return re.findall(r'<a href="/ops/approvals/([0-9a-f-]{36})">', page)


def votes(world: Any, approval_id: Any) -> int:
    return int(world.sql("select count(*) from sentinel.approval_votes where approval_id = %s", approval_id)[0][0])


# The queue ------------------------------------------------------------------------------------------------------------


def test_the_queue_is_by_risk_then_by_what_runs_out_and_pages_without_gap(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ops_console.pages.approvals.PAGE", 2)
    late, two_people, soon, plain = (world.approval(value) for value in ("200.00", "600.00", "210.00", "220.00"))
    fraud = world.approval("230.00")
    world.sql("update sentinel.approvals set expires_at = expires_at - interval '9 min' where approval_id = %s", soon)
    world.sql("update sentinel.approvals set reasons = '{outside_window}' where approval_id = %s", plain)
    world.sql("update sentinel.approvals set reasons = '{critic_instructions}', expires_at = expires_at + interval '5 min'"
              " where approval_id = %s", fraud)  # fmt: skip
    ann = world.browser("ann")
    seen, address = [], ""
    while True:
        page = ann.get(f"/ops/approvals{address}").get_data(as_text=True)
        found = re.findall(r'<a href="/ops/approvals/([0-9a-f-]{36})">', page)
        seen += found
        older = re.search(r'href="/ops/approvals(\?[^"]+)">Older', page)
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


def test_the_queue_says_when_it_changed_and_is_silent_otherwise(world: Any) -> None:
    ann, first = world.browser("ann"), world.approval()
    page = ann.get("/ops/approvals").get_data(as_text=True)
    (address,) = re.findall(r'hx-get="(/ops/approvals/standing[^"]+)"', page)
    assert ann.get(address).status_code == 204
    world.approval()
    assert "2 wait now" in ann.get(address).get_data(as_text=True)
    (mark,) = re.findall(r'hx-get="(/ops/approvals/[^"]+/state[^"]+)"', card(ann, first))
    assert ann.get(mark).status_code == 204
    say(world.browser("bob", proved=True), first)
    told = ann.get(mark).get_data(as_text=True)
    assert "data-closes-form" in told
    assert "approved by bob@demo.local" in told


# A card ---------------------------------------------------------------------------------------------------------------

HOSTILE = {
    "direction": "pay \u202e0001 USD\u202c now",
    "zero_width": "re\u200bfund\ufeff appro\u2060ved",
    "tags": "harmless\U000e0041\U000e0042 text",
    "markup": '<script>alert(1)</script><img src=x onerror="alert(2)">',
    "padding": "looks short" + " " * 300 + "and is not",
    "fields": '"><input name="verdict" value="approve">',
    "line": "first\u2028Approved by the head of finance",
}


def hidden_in(page: str) -> list[str]:
    """Characters of a page that its reader would not see, or would see elsewhere; the checker of this file."""
    body = page[page.index("<main") :]
    return [
        f"U+{ord(c):04X}"
        for c in body
        if c in "\u202e\u202c\u200b\ufeff\u2060\u2028" or "\U000e0000" <= c <= "\U000e007f"
    ]


def hostile_card(world: Any) -> str:
    """A card over text that the authority would not even have taken: somebody wrote it into the database."""
    approval_id = world.approval("200.00")
    (stored,) = world.sql("select request from sentinel.operations order by created_at desc limit 1")[0]
    operation = json.loads(stored)
    operation["params"] |= {"note": HOSTILE, "weird <b>name</b>": "x"}
    canonical = canonical_json(operation)
    world.sql("alter table sentinel.operations disable trigger append_only")
    world.sql("update sentinel.operations set request = %s where request = %s", canonical, stored)
    world.sql("update sentinel.approvals set digest = %s where approval_id = %s", sha256_hex(canonical), approval_id)
    return card(world.browser(f"reader{uuid.uuid4().hex[:8]}"), approval_id)


def test_hostile_text_on_a_card_is_escaped_shown_and_fenced(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    page = hostile_card(world)
    assert hidden_in(page) == []
    assert "<script>alert" not in page
    assert "<img" not in page[page.index("<main") :]
    assert "<b>name" not in page
    assert page.count('name="verdict"') == 3
    for shown in ("U+202E", "U+200B", "U+FEFF", "U+2060", "U+E0041", "U+2028", 'title="300 spaces"', "&lt;script&gt;"):
        assert shown in page, shown
    fenced = re.findall(r'<figure class="untrusted">.*?</figure>', page, re.S)
    assert len(fenced) == len(HOSTILE)
    assert "head of finance" in "".join(fenced)
    assert "head of finance" not in re.sub(r'<figure class="untrusted">.*?</figure>', "", page, flags=re.S)
    # The twin only escapes: what nobody sees gets through, and is caught.
    monkeypatch.setitem(text.FILTERS, "visible", text.escape)
    assert len(hidden_in(hostile_card(world))) >= 6


def test_a_card_shows_what_is_bound_and_who_may_see_whose_account_it_is(world: Any) -> None:
    boss = world.operator("boss", "admin")
    approval_id = world.approval("640.00", owner=boss)
    ann, vic = world.browser("ann"), world.browser("vic", "viewer")
    page, viewed = card(ann, approval_id), card(vic, approval_id)
    (request,) = world.sql("select request from sentinel.operations")[0]
    account = next(fact.shown for fact in facts_of(request, accounts=True) if fact.path == "account_ref")
    assert account in page
    assert account not in viewed
    assert "shown to approvers" in viewed
    for words in ("640.00 USD", "The amount needs a person&#39;s approval.", "boss@demo.local", "0 of 2", digest_on(page),
                  "lifts no halt", "account month", "1,000.00 USD", "/verify/pf_"):  # fmt: skip
        assert words in page, words
    assert "You answer for the key that asks this" in card(world.at_page(boss.email), approval_id)
    assert "<form" not in viewed.split("<main")[1]
    assert "this needs the role approver" in viewed.lower()
    assert "<form" not in vic.get("/ops/approvals").get_data(as_text=True).split("<table")[1]


def test_a_card_says_each_condition_in_words_with_its_source_beside_it(
    world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = with_odd_policy(world, tmp_path / "policies")
    ann, approval_id = world.browser("ann", app=app), world.approval("200.00")
    page = card(ann, approval_id)
    (policy,) = [
        one.policy for one in world.authority.policies.library.policies if one.policy.policy_id == "retail-refund"
    ]
    said, bare = ([html.unescape(one) for one in found.findall(page)] for found in (SOURCE, BARE))
    assert sorted(said + bare) == sorted(one.when for one in (*policy.rules, *policy.limits) if one.when)
    assert sorted(bare) == ["amount_minor % 2 < 9", "amount_minor % 2 == 7"]
    told = words_of(ann.get(f"/ops/approvals/{approval_id}"))
    for wanted in (
        "the amount is more than 150.00 (EUR, GBP, USD) and the amount is at most 1,000.00 (EUR, GBP, USD) amount_minor >",
        "account is “<script>alert(1)</script>” account ==", "account month for each account and currency per calendar month in UTC",
        "where account is not “<img src=x onerror=alert(1)>” account !=", "account 24h for each account and currency in any 24 hours where amount_minor % 2",
    ):  # fmt: skip
        assert wanted in told, wanted
    assert "<script>alert" not in page
    assert "<img src=x" not in page
    # The twin writes foreign text as it is.
    monkeypatch.setitem(text.FILTERS, "visible", Markup)
    raw = card(world.at_page(ann.email, world.app(policies_dir=tmp_path / "policies")), approval_id)
    assert "<script>alert" in raw
    assert "<img src=x" in raw


def test_a_halt_and_an_operation_that_is_not_the_digests_are_told_on_the_card(world: Any) -> None:
    ann, approval_id = world.browser("ann", proved=True), world.approval()
    world.sql("insert into sentinel.halts (tenant_id, halt_id, scope, level, reason, set_by, set_at)"
              " values (%s, gen_random_uuid(), 'tenant', 'kill', 'x', 'x', now())", world.tenant_id)  # fmt: skip
    assert "A halt covers this" in card(ann, approval_id)
    world.sql("update sentinel.approvals set amount_minor = 100 where approval_id = %s", approval_id)
    page = card(ann, approval_id)
    assert "not the one that the digest names" in page
    assert 'name="verdict"' not in page
    assert say(ann, approval_id).status_code == 409
    assert votes(world, approval_id) == 0


# Words ----------------------------------------------------------------------------------------------------------------


def test_a_word_needs_its_reason_its_digest_its_role_and_a_proof(world: Any) -> None:
    ann, vic, approval_id = world.browser("ann"), world.browser("vic", "viewer"), world.approval()
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
    assert votes(world, approval_id) == 0
    assert world.approval_status(approval_id) == "pending"

    answer = ann.submit(address, **whole)
    assert (answer.status_code, answer.headers["Location"]) == (303, address)
    page = card(ann, approval_id)
    assert "Approved." in page
    assert "ann@demo.local" in page
    assert "Nothing else waits" in page

    # The twin does not compare digests: what was never shown is taken, and that is seen.
    ((function,),) = world.sql("select pg_get_functiondef('sentinel.resolve_approval'::regproc)")
    assert FENCE in function
    world.sql("set role sentinel_owner; " + function.replace(FENCE, ""))
    assert say(ann, world.approval(), digest=ZERO).status_code == 303


def words_counted(world: Any) -> tuple[int, list[int]]:
    """How many words five posts of one form left behind, and what they were answered; the checker of this file."""
    ann, approval_id = world.browser(f"p{uuid.uuid4().hex[:8]}", proved=True), world.approval("600.00")
    answers = [say(ann, approval_id).status_code for _ in range(5)]
    assert world.approval_status(approval_id) == "pending"
    return votes(world, approval_id), answers


def test_a_form_sent_again_is_one_word_and_no_error(world: Any) -> None:
    assert words_counted(world) == (1, [303] * 5)
    ann, approval_id = world.browser("ann", proved=True), world.approval("600.00")
    assert say(ann, approval_id).status_code == 303
    page = say(ann, approval_id, "reject").get_data(as_text=True)
    assert "another person has to give theirs" in page
    assert world.approval_status(approval_id) == "pending"

    # The twin takes one person for several, and is caught.
    world.sql("alter table sentinel.approval_votes drop constraint approval_votes_pkey")
    assert words_counted(world) != (1, [303] * 5)


def test_two_people_are_told_how_far_it_is_and_an_ended_one_cannot_be_decided(world: Any) -> None:
    app = world.app()
    ann, bob, approval_id = (
        world.browser("ann", app=app, proved=True),
        world.browser("bob", app=app, proved=True),
        world.approval("600.00"),
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
    cyd = world.browser("cyd", app=app, proved=True)
    late = say(cyd, approval_id, digest=before)
    assert (late.status_code, "decided before" in late.get_data(as_text=True)) == (409, True)

    ended = world.approval("200.00")
    world.sql("update sentinel.approvals set expires_at = clock_timestamp() where approval_id = %s", ended)
    assert "expired" in card(cyd, ended)
    assert say(cyd, ended).status_code == 409
    assert str(ended) not in listed(cyd)


def test_whoever_answers_for_the_asking_key_decides_nothing_on_the_pages(world: Any) -> None:
    owner = world.operator("owner", "admin")
    approval_id = world.approval(owner=owner)
    browser = world.at_page(owner.email, proved=True)
    assert say(browser, approval_id).status_code == 403
    assert say(browser, approval_id, "reject").status_code == 403
    batch = browser.submit(
        "/ops/approvals/batch",
        id=str(approval_id),
        digest=digest_of(browser, approval_id),
        verdict="approve",
        reason="x",
    )
    assert "who owns, made or rotated the asking key" in batch.get_data(as_text=True)
    assert votes(world, approval_id) == 0


def test_an_orders_card_has_its_signals_fenced_and_the_analysts_words(world: Any) -> None:
    app = world.app()
    for word, ends in (("fulfil", "QUEUED"), ("refund", "REFUND_FILED"), ("hold", "HELD")):
        order_id, ann = queued(world), world.browser(f"analyst-{word}", app=app)
        (approval_id,) = world.sql("select approval_id from orders.reviews where order_id = %s", order_id)[0]
        page = card(ann, approval_id)
        assert re.findall(r'name="verdict" value="(\w+)"', page) == ["fulfil", "refund", "hold"]
        assert "billing GB, shipping NG" in re.findall(r'<figure class="untrusted">.*?</figure>', page, re.S)[0]
        assert "secret@x.example" not in page
        assert say(ann, approval_id, "reject").status_code == 400
        if word != "hold":
            assert say(ann, approval_id, word).status_code == 400
        for _ in range(2):
            assert say(ann, approval_id, word, proof=PASSWORD).status_code == 303
        assert standing(world, order_id) == (ends, word)
        assert votes(world, approval_id) == 1
        assert approval_words.REPEATED in card(ann, approval_id)


# Several at once --------------------------------------------------------------------------------------------------------


def test_a_batch_resolves_each_on_its_own_and_tells_each(world: Any) -> None:
    made = [world.approval(value) for value in ("200.00", "210.00", "220.00", "230.00")]
    ann, query = world.browser("ann"), "&".join(f"id={one}" for one in made)
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
    assert sum(votes(world, one) for one in made) == 0

    say(world.browser("bob"), made[3], "reject")
    stale = [digests[0], ZERO, digests[2], digests[3]]
    answer = tried("approve", "approve", "", "approve", digest=stale, proof=PASSWORD)
    told = answer.get_data(as_text=True)
    assert answer.status_code == 200
    assert "1 of 3 words were taken; 1 left out" in told
    assert "look at it again" in told
    assert "decided before" in told
    assert [world.approval_status(one) for one in made] == ["approved", "pending", "pending", "rejected"]
    again = tried("approve", "", "", "").get_data(as_text=True)
    assert approval_words.REPEATED in again
    assert votes(world, made[0]) == 1


def test_a_batch_is_bounded_for_approvers_and_reaches_no_other_tenant(world: Any) -> None:
    ann, vic = world.browser("ann", proved=True), world.browser("vic", "viewer")
    many = "&".join(f"id={uuid.uuid4()}" for _ in range(21))
    answer = ann.get(f"/ops/approvals/batch?{many}")
    assert (answer.status_code, "at most 20" in answer.get_data(as_text=True)) == (400, True)
    assert ann.get("/ops/approvals/batch").status_code == 303
    assert vic.get(f"/ops/approvals/batch?{many}").status_code == 403
    assert vic.submit("/ops/approvals/batch", reason="x").status_code == 403

    approval_id = world.approval(tenant_id=world.tenant("other"))
    assert ann.get(f"/ops/approvals/{approval_id}").status_code == 404
    assert ann.get(f"/ops/approvals/{approval_id}/state?seen=x").status_code == 404
    assert listed(ann) == []
    fields = {"verdict": "reject", "reason": "x", "digest": ZERO}
    assert ann.submit(f"/ops/approvals/{approval_id}", **fields).status_code == 404
    batch = ann.submit("/ops/approvals/batch", id=str(approval_id), **fields).get_data(as_text=True)
    assert "there is nothing of that id" in batch
    assert world.approval_status(approval_id) == "pending"
