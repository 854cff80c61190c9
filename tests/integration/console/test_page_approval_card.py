"""An approval's card as a page: what it shows, what it hides, and hostile text on it."""

from __future__ import annotations

import dataclasses
import html
import json
import re
import shutil
import uuid
from pathlib import Path
from typing import Any

import pytest
from markupsafe import Markup

from ops_console.pages import text
from ops_console.pages.approval_facts import facts_of
from sentinel.authority.keys import DEFAULT_SCOPES, WORKER_SCOPES
from sentinel.authority.policies import declare_policies
from sentinel.core.canonical import canonical_json, sha256_hex
from sentinel.platform.resources import policies_dir
from sentinel.policy.library import ReloadablePolicies
from tests.integration.console.approval_pages import card, digest_on, say, votes
from tests.integration.console.test_page_policies import BARE, SOURCE, with_odd_policy
from tests.integration.console.test_page_policies import words as page_words
from tests.support.verbs import guarded

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


def hostile_card(fixtures: Any) -> str:
    """A card over text that the authority would not even have taken: somebody wrote it into the database."""
    approval_id = fixtures.approval("200.00")
    (stored,) = fixtures.sql("select request from sentinel.operations order by created_at desc limit 1")[0]
    operation = json.loads(stored)
    operation["params"] |= {"note": HOSTILE, "weird <b>name</b>": "x"}
    canonical = canonical_json(operation)
    fixtures.sql("alter table sentinel.operation_rows disable trigger append_only")
    fixtures.sql("update sentinel.operation_rows r set request = %s from sentinel.operations o where o.operation_id = r.operation_id"
                 " and o.request = %s", canonical, stored)  # fmt: skip
    fixtures.sql("update sentinel.approvals set digest = %s where approval_id = %s", sha256_hex(canonical), approval_id)
    return card(fixtures.browser(f"reader{uuid.uuid4().hex[:8]}"), approval_id)


def test_hostile_text_on_a_card_is_escaped_shown_and_fenced(fixtures: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    page = hostile_card(fixtures)
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
    # The mutant only escapes: what nobody sees gets through, and is caught.
    monkeypatch.setitem(text.FILTERS, "visible", text.escape)
    monkeypatch.setitem(text.FILTERS, "whole", text.escape)
    assert len(hidden_in(hostile_card(fixtures))) >= 6


def test_marks_that_are_stacked_upon_a_letter_cover_nothing_of_a_card(fixtures: Any) -> None:
    """The finding: any number of them was drawn, over the lines above and below the text that they were in."""
    recorded = fixtures.guard("200.00", note="pay m" + "\u0301\u0316" * 60 + "e", name="re\u0301\u0323sume\u0301")
    page = card(fixtures.browser("ann"), recorded.approval_id)
    assert "m\u0301\u0316<span" in page and page.count("U+0301</span>") == 59
    assert "re\u0301\u0323sume\u0301" in page, "two marks on a letter are a language's"


def test_a_card_shows_what_is_bound_and_who_may_see_whose_account_it_is(fixtures: Any) -> None:
    boss = fixtures.operator("boss", "admin")
    approval_id = fixtures.approval("640.00", owner=boss)
    ann, vic = fixtures.browser("ann"), fixtures.browser("vic", "viewer")
    page, viewed = card(ann, approval_id), card(vic, approval_id)
    (request,) = fixtures.sql("select request from sentinel.operations")[0]
    account = next(fact.shown for fact in facts_of(request, accounts=True) if fact.path == "account_ref")
    assert account in page
    assert account not in viewed
    assert "shown to approvers" in viewed
    for words in ("640.00 USD", "The amount needs a person&#39;s approval.", "boss@demo.local", "0 of 2", digest_on(page),
                  "no halt, no rule that denies", "account month", "1,000.00 USD", "/verify/pf_"):  # fmt: skip
        assert words in page, words
    assert "You own the key that requested this" in card(fixtures.at_page(boss.email), approval_id)
    assert "<form" not in viewed.split("<main")[1]
    assert "this needs the role approver" in viewed.lower()
    assert "<form" not in vic.get("/ops/approvals").get_data(as_text=True).split("<table")[1]


IMITATIONS = {
    "Amount": "1.00 USD",
    "Key owner": "chief@demo.local",
    "Expires": "never",
    "Approved by the head of finance": "yes, all of it",
}
OUR_LABELS = re.compile(r"<dt>([^<]*)</dt>")


def labels(page: str) -> list[str]:
    """The labels of "Request" that stand as this page's own."""
    asked = page[page.index('aria-labelledby="asked"') : page.index('aria-labelledby="why"')]
    return [html.unescape(one) for one in OUR_LABELS.findall(asked)]


def test_facts_of_an_agents_own_that_differ_never_look_the_same() -> None:
    def shown(**params: Any) -> list[tuple[str, str]]:
        return [(fact.path, fact.shown) for fact in facts_of(json.dumps({"params": params}), accounts=False)]

    nested, dotted = shown(risk={"duplicate": True}), shown(**{"risk.duplicate": True})
    assert nested == [("risk.duplicate", "yes")] and dotted == [('"risk.duplicate"', "yes")]
    assert shown(lines=[1]) == [("lines[1]", "1")] and shown(**{"lines[1]": 1}) == [('"lines[1]"', "1")]
    assert shown(**{'"risk.duplicate"': True}) == [('"\\"risk.duplicate\\""', "yes")]
    assert shown(fee={"amount_minor": -5, "currency": "USD"}) == [("fee", "-0.05 USD")]
    hidden = shown(a={"account_ref": ["acct_1"]}, **{"b.account_id": "acct_2"})
    assert not any("acct_" in text for _, text in hidden), hidden


def test_facts_of_an_agents_own_push_no_known_one_off_the_card_and_imitate_none(fixtures: Any) -> None:
    """A hundred params that sort before `account_ref`, some under the names of this page's own rows."""
    pushed = {f"a{number:03}": number for number in range(100)}
    recorded = fixtures.guard("200.00", account_ref="acct_payee", **pushed, **IMITATIONS)
    page, plain = (
        card(fixtures.browser("ann"), recorded.approval_id),
        card(fixtures.browser("bob"), fixtures.approval("200.00")),
    )
    assert labels(page) == labels(plain) and len(labels(page)) == len(set(labels(page)))
    assert labels(page)[:4] == ["Amount", "Agent", "Key owner", "account_ref"]
    own = page[page.index('class="as-written"') :]
    known, own = page[: page.index('class="as-written"')], own[: own.index("</section>")]
    assert "acct_payee" in known and "chief@demo.local" not in known
    for name in (*pushed, *(html.escape(one) for one in IMITATIONS)):
        assert f"<code>{name}</code>" in own, name
    assert "more than a person is likely to read" in own and "more than a person is likely to read" not in plain
    assert "The agent wrote 108 facts" in own, "four of its risk with them"


def test_what_only_looks_like_an_amount_is_shown_as_it_was_written(fixtures: Any) -> None:
    odd = (
        {"amount_minor": "all of it", "currency": "USD"},
        {"amount_minor": 5, "currency": "XYZ"},
        {"amount_minor": True, "currency": "EUR"},
    )
    recorded = fixtures.guard("200.00", odd=list(odd), fee={"amount_minor": 150, "currency": "EUR"}, none={}, empty=[])
    page = card(fixtures.browser("ann"), recorded.approval_id)
    for name, shown in {
        "odd[1].currency": "USD",
        "odd[2].amount_minor": "5",
        "fee": "1.50 EUR",
        "none": "{}",
        "empty": "[]",
    }.items():
        assert re.search(rf"<dt><code>{re.escape(name)}</code></dt><dd>(<code>)?{re.escape(shown)}<", page), name
    assert "all of it" in page


def test_a_long_text_that_is_decided_about_is_shown_to_its_end(fixtures: Any) -> None:
    recorded = fixtures.guard("200.00", note="a word " * 1000 + "and the account is acct_at_the_end")
    page = card(fixtures.browser("ann"), recorded.approval_id)
    assert "acct_at_the_end</blockquote>" in page and "more characters" not in page


def test_several_decided_together_say_whom_each_is_about_and_what_more_there_is(fixtures: Any) -> None:
    recorded = fixtures.guard("200.00", account_ref="acct_payee", **{f"a{number:03}": number for number in range(100)})
    page = fixtures.browser("ann").get(f"/ops/approvals/batch?id={recorded.approval_id}").get_data(as_text=True)
    assert "account_ref <code>acct_payee</code>" in page
    assert f'<a href="/ops/approvals/{recorded.approval_id}">104 more facts that the agent wrote</a>' in page


def test_a_card_shows_each_condition_below_its_sentence(
    fixtures: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = with_odd_policy(fixtures, tmp_path / "policies")
    ann, approval_id = fixtures.browser("ann", app=app), fixtures.approval("200.00")
    page = card(ann, approval_id)
    (policy,) = [
        one.policy for one in fixtures.authority.policies.library.policies if one.policy.policy_id == "retail-refund"
    ]
    shown = [html.unescape(one) for one in SOURCE.findall(page)]
    assert sorted(shown) == sorted(one.when for one in (*policy.rules, *policy.limits) if one.when)
    assert BARE.findall(page) == []
    told = page_words(ann.get(f"/ops/approvals/{approval_id}"))
    for wanted in (
        "The amount is more than is paid without a person, and not more than a person may approve. amount_minor >",
        "numbers.allow_up_to: 150.00 EUR, 150.00 GBP, 150.00 USD numbers.approve_up_to: 1,000.00 EUR",
        "It says <script>alert(2)</script>. account ==", "account month for each account and currency per calendar month in UTC"
        " What one account gets back in a calendar month without a person.",
        "What one account gets back in a calendar day without a person. account != '<img src=x onerror=alert(1)>'",
        "account 24h for each account and currency in any 24 hours What one account gets back in any 24 hours without a person. amount_minor % 2",
    ):  # fmt: skip
        assert wanted in told, wanted
    assert "<script>alert" not in page
    assert "<img src=x" not in page
    # The mutant writes foreign text as it is.
    for name in ("visible", "whole"):
        monkeypatch.setitem(text.FILTERS, name, Markup)
    raw = card(fixtures.at_page(ann.email, fixtures.app(policies_dir=tmp_path / "policies")), approval_id)
    assert "<script>alert" in raw
    assert "<img src=x" in raw


LIMITED = """
policy: retail-refund
label: Limited
version: limited-v1
actions: [refund.create]
facts:
  amount:  {type: money, from: params.amount, vouched_by: agent}
  account: {type: string, from: params.account_ref, vouched_by: worker}
rules:
  - {id: small, says: The amount is small., when: amount_minor <= 100000, then: ALLOW, reason: small_amount}
limits:
  - {id: account_day, says: What one account gets., window: calendar_day, per: [account, currency], cap: {USD: "300.00"}, then: APPROVAL_REQUIRED, reason: limit_exceeded}
  - {id: key_day, says: What one key pays., window: calendar_day, per: [key, currency], cap: {USD: "300.00"}, then: APPROVAL_REQUIRED, reason: total_exceeded}
approval: {expires: 30m, role: approver, people: 1}
"""


@pytest.fixture
def limited(fixtures: Any, tmp_path: Path) -> Path:
    """A folder of policies with LIMITED, which are in force."""
    shutil.copytree(policies_dir(), tmp_path / "policies")
    (tmp_path / "policies" / "retail_refund.yaml").write_text(LIMITED)
    fixtures.authority = dataclasses.replace(fixtures.authority, policies=ReloadablePolicies(tmp_path / "policies"))
    declare_policies(fixtures.authority)
    return tmp_path / "policies"


def used_on(fixtures: Any, policies: Path, approval_id: uuid.UUID) -> list[str]:
    """What a card says is used of each limit; of the limits of LIMITED 200.00 USD more goes in only where nothing is."""
    page = card(fixtures.browser("ann", app=fixtures.app(policies_dir=policies)), approval_id)
    used = re.findall(r'data-label="Used" class="number">([^<]+)<', page)
    over = ["fits" if one.startswith("0") else "exceeds it" for one in used]
    assert re.findall(r'data-label="With this"[^>]*>([^<]+)<', page) == over
    return used


@pytest.mark.parametrize(
    ("scopes", "used"),
    [(DEFAULT_SCOPES, ["200.00 USD", "200.00 USD"]), (WORKER_SCOPES, ["0.00 USD", "200.00 USD"])],
    ids=["an agent's", "a worker's"],
)
def test_a_card_shows_the_budgets_that_its_key_is_counted_in(
    fixtures: Any, limited: Path, scopes: tuple[str, ...], used: list[str]
) -> None:
    """The account that a key names counts for a worker's key alone; what another names is one budget of all of them."""
    caller = fixtures.caller(scopes=scopes)
    assert fixtures.guard("200.00", caller).status == "allowed"
    recorded = fixtures.guard("200.00", caller)
    assert recorded.status == "pending"
    assert used_on(fixtures, limited, recorded.approval_id) == used


@pytest.mark.parametrize(
    ("first", "second", "used"),
    [
        (WORKER_SCOPES, DEFAULT_SCOPES, ["200.00 USD", "200.00 USD"]),
        (DEFAULT_SCOPES, WORKER_SCOPES, ["0.00 USD", "200.00 USD"]),
    ],
    ids=["a worker's key first", "an agent's key first"],
)
def test_a_card_of_what_another_key_asked_again_shows_the_budgets_of_that_key(
    fixtures: Any, limited: Path, first: tuple[str, ...], second: tuple[str, ...], used: list[str]
) -> None:
    one, other = fixtures.caller(scopes=first), fixtures.caller(scopes=second)
    refund = fixtures.refund("200.00")
    statuses = [fixtures.guard("100.00", one).status, fixtures.guard("200.00", other).status]
    recorded = guarded(fixtures.authority, one, refund)
    assert [*statuses, recorded.status] == ["allowed"] * 3
    fixtures.sql("update sentinel.operation_states set permit_expires_at = clock_timestamp() where operation_id = %s",
              recorded.operation_id)  # fmt: skip
    again = guarded(fixtures.authority, other, refund)
    assert again.status == "pending"
    assert used_on(fixtures, limited, again.approval_id) == used


def caps_on(page: str) -> list[str]:
    """The caps of the limits on a card."""
    return re.findall(r'data-label="Cap" class="number">([^<]+)<', page)


def test_a_card_shows_the_limits_in_force_whatever_became_of_the_files(fixtures: Any, limited: Path) -> None:
    caller = fixtures.caller()
    assert fixtures.guard("200.00", caller).status == "allowed"
    recorded = fixtures.guard("200.00", caller)
    ann = fixtures.browser("ann", app=fixtures.app(policies_dir=limited))
    assert caps_on(card(ann, recorded.approval_id)) == ["300.00 USD"] * 2
    assert ">200.00 USD of 300.00 USD</meter>" in card(ann, recorded.approval_id), "for browsers without meters"
    (limited / "retail_refund.yaml").write_text(LIMITED.replace('"300.00"', '"3000.00"'))
    assert caps_on(card(ann, recorded.approval_id)) == ["300.00 USD"] * 2
    (limited / "another.yaml").write_text("policy: [")
    assert caps_on(card(ann, recorded.approval_id)) == ["300.00 USD"] * 2
    shipped = fixtures.browser("bob", app=fixtures.app())
    assert caps_on(card(shipped, recorded.approval_id)) == ["300.00 USD"] * 2, "a console with another folder"


def test_a_card_says_so_where_its_limits_cannot_be_told(fixtures: Any, tmp_path: Path) -> None:
    untold, approval_id = "The limits cannot be shown", fixtures.approval("200.00")
    (tmp_path / "retail_refund.yaml").write_text("policy: [")
    ann = fixtures.browser("ann", app=fixtures.app(policies_dir=tmp_path))
    assert untold in card(ann, approval_id), "no authority has declared any, and the files have a fault"
    declare_policies(fixtures.authority)
    page = card(ann, approval_id)
    assert untold not in page and caps_on(page)
    unknown = "sha256:" + "0" * 64
    fixtures.sql("update sentinel.policies_in_force set policy_digest = %s where policy_id = 'small-refund'", unknown)
    page = card(ann, approval_id)
    assert untold in page and not caps_on(page), "one that decides is not known here"


def test_a_halt_and_an_operation_that_is_not_the_digests_are_told_on_the_card(fixtures: Any) -> None:
    ann, approval_id = fixtures.browser("ann", proved=True), fixtures.approval()
    fixtures.sql("insert into sentinel.halts (tenant_id, halt_id, scope, level, reason, set_by, set_at)"
              " values (%s, gen_random_uuid(), 'tenant', 'kill', 'x', 'x', now())", fixtures.tenant_id)  # fmt: skip
    assert "A halt covers this" in card(ann, approval_id)
    fixtures.sql("update sentinel.approvals set amount_minor = 100 where approval_id = %s", approval_id)
    page = card(ann, approval_id)
    assert "does not match the digest" in page
    assert 'name="verdict"' not in page
    assert say(ann, approval_id).status_code == 409
    assert votes(fixtures, approval_id) == 0


def test_why_an_agent_wants_it_is_shown_fenced_off_and_changes_nothing(fixtures: Any) -> None:
    approval_id = fixtures.approval("200.00")
    browser = fixtures.browser("reader")
    before = card(browser, approval_id)
    for number, words in enumerate(
        ("The customer waits.", "The customer waits.", '<b>Approve</b> "at once" \u202e now', "Third.", "Fourth.")
    ):
        fixtures.sql(
            "insert into sentinel.aap_requests (tenant_id, request_id, principal_id, idempotency_key, agent_id, submission, reasoning,"
            " operation_id, created_at, deadline_at) select tenant_id, %s, principal_id, %s, agent_id, '{}', %s, operation_id,"
            " created_at + %s * interval '1 second', created_at + interval '1 hour' from sentinel.approvals where approval_id = %s",
            uuid.uuid4(), f"k{number}", words, number, approval_id,
        )  # fmt: skip
    page = card(browser, approval_id)
    fenced = re.findall(r'<figure class="untrusted">.*?</figure>', page, re.S)
    assert [part for part in ("Fourth.", "Third.", "&lt;b&gt;Approve", "The customer waits.") if part in "".join(fenced)] == [
        "Fourth.", "Third.", "&lt;b&gt;Approve",
    ], "the newest three, each once"  # fmt: skip
    outside = re.sub(r'<figure class="untrusted">.*?</figure>', "", page, flags=re.S)
    assert "Approve</b>" not in page and "Fourth." not in outside and hidden_in(page) == []
    assert digest_on(page) == digest_on(before)
