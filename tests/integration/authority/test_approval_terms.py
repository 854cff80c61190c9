"""G52: an approval is good for the terms it was given under; a policy that asks for more asks again."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sentinel.authority.approvals import earlier_votes, find_approval
from sentinel.core.errors import Forbidden
from sentinel.platform.resources import policies_dir
from tests import mutants
from tests.support.fixtures import Fixtures, four_keys, guard_body, unique
from tests.support.harness import digest_of, let_permits_expire
from tests.support.lifecycle import fill_account

ROLES, PEOPLE = ("approver", "admin"), (1, 2)
TERMS = "role: approver\n  people: 1 "
Body = dict[str, Any]


def policy_asks(fixtures: Fixtures, folder: Path, *, role: str, people: int, digest: str = "", **texts: str) -> None:
    """From now on the fixtures decides by the retail policy with these terms; `digest` only makes it another policy."""
    text = (policies_dir() / "retail_refund.yaml").read_text()
    assert TERMS in text
    text = text.replace(TERMS, f"role: {role}\n  people: {people} ").replace(
        "Retail Refund Policy v1", f"Retail Refund Policy v1{digest}"
    )
    for old, new in texts.items():
        assert old in text
        text = text.replace(old, new)
    place = folder / unique("policies")
    place.mkdir()
    (place / "retail_refund.yaml").write_text(text)
    fixtures.authority.policies.directory = place
    fixtures.authority.policies.reload()


def person(fixtures: Fixtures, role: str) -> None:
    """Another person of that role, under the role's name with a 2."""
    operator = uuid.uuid4()
    fixtures.operators[f"{role}2"] = operator
    fixtures.admin.execute(
        "insert into sentinel.operators (tenant_id, operator_id, email, password_hash, role) values (%s, %s, %s, 'x', %s)",
        [fixtures.tenant_id, operator, f"{unique('second')}@somewhere.example", role])  # fmt: skip


def vote(fixtures: Fixtures, approval_id: Any, who: str) -> str:
    """A person's "approve"; `who` is a role, with a 2 for the second of it."""
    from sentinel.authority.actor import Actor
    from sentinel.authority.approvals import resolve_approval

    person = Actor(fixtures.tenant_id, fixtures.operators[who], f"{who}@somewhere.example", who.rstrip("2"))
    done = resolve_approval(
        fixtures.console_pool, person, uuid.UUID(str(approval_id)), verdict="approve", reason=f"{who} looked",
        digest=digest_of(fixtures, approval_id),
    )  # fmt: skip
    return done.result


def approved(fixtures: Fixtures, body: Body, *, role: str, people: int) -> Body:
    """The answer to `body`, which as many people of that role approved, and no more of each than it takes."""
    asked = fixtures.guard(body)
    assert asked["status"] == "pending"
    for who in (role, f"{role}2")[:people]:
        vote(fixtures, asked["approval_id"], who)
    return asked


def in_a_batch(fixtures: Fixtures, body: Body) -> Body:
    """The guard's answer in a batch."""
    (answer,) = fixtures.post("action/guard/batch", {"requests": [body]}).get_json()["answers"]
    assert answer["status"] == 200
    return dict(answer["body"])


WAYS: dict[str, tuple[Callable[[Body], Body], Callable[[Fixtures, Body], Body]]] = {
    "a guard asked again": (lambda body: body, Fixtures.guard),
    "a batch": (lambda body: body, in_a_batch),
    "a start with the answer, as the worker does": (
        lambda body: {**body, "start_id": str(uuid.uuid4())},
        Fixtures.guard,
    ),
    "the 0.7 client": (four_keys, Fixtures.guard),
}
"""How a caller comes back: what it sends, and through which route."""


@pytest.fixture
def staffed(fixtures: Fixtures) -> Fixtures:
    """A set of fixtures with two approvers and two administrators."""
    person(fixtures, "approver")
    person(fixtures, "admin")
    return fixtures


@pytest.mark.parametrize("way", WAYS)
def test_each_change_of_terms_asks_again_exactly_where_it_became_stricter(
    staffed: Fixtures, tmp_path: Path, way: str
) -> None:
    """The table: (role, people, digest) before × after. Nobody who voted fits a stricter role or number here."""
    fixtures, (sent, back) = staffed, WAYS[way]
    cases = list(itertools.product(ROLES, PEOPLE, ROLES, PEOPLE, ["", " again"]))
    wrong = []
    for role, people, role_now, people_now, digest in cases:
        policy_asks(fixtures, tmp_path, role=role, people=people)
        body = sent(guard_body(value=200))
        first = approved(fixtures, body, role=role, people=people)
        policy_asks(fixtures, tmp_path, role=role_now, people=people_now, digest=digest)
        answer = back(fixtures, body)
        stricter = (role, role_now) == ("approver", "admin") or people_now > people
        wanted = "asked again" if stricter else "permitted"
        got = "asked again" if answer["status"] == "pending" and "permit_token" not in answer else "permitted"
        if got != wanted or (got == "permitted") != ("permit_token" in answer or "start" in answer):
            wrong.append((role, people, role_now, people_now, digest, answer["status"]))
        if stricter:
            assert answer["approval_id"] != first["approval_id"]
            row = find_approval(fixtures.console_pool, fixtures.tenant_id, uuid.UUID(answer["approval_id"]))
            assert row is not None and str(row.follows) == first["approval_id"]
            assert (row.required_role, row.required_people) == (role_now, people_now)
    print(f"N={len(cases)} changes by {way}")
    assert wrong == []
    assert fixtures.broken_invariants() == []


def test_a_renewed_permit_is_asked_for_again_too(staffed: Fixtures, tmp_path: Path) -> None:
    fixtures, body = staffed, guard_body(value=200)
    approved(fixtures, body, role="approver", people=1)
    assert fixtures.guard(body)["status"] == "approved"
    let_permits_expire(fixtures)
    policy_asks(fixtures, tmp_path, role="admin", people=2)
    asked = fixtures.guard(body)
    assert (asked["status"], "permit_token" in asked) == ("pending", False)
    # What the approval was about stays held: nobody else may do it meanwhile.
    other = fixtures.guard(guard_body(value=200, params={"refund_id": body["params"]["refund_id"]}))
    assert (other["decision"], other["reason_code"]) == ("DENY", "duplicate_resource")
    for who in ("admin", "admin2"):
        vote(fixtures, asked["approval_id"], who)
    answer = fixtures.guard(body)
    assert (answer["status"], "permit_token" in answer) == ("approved", True)
    assert fixtures.broken_invariants() == []


def test_an_earlier_vote_is_shown_and_counts_only_where_its_person_fits(staffed: Fixtures, tmp_path: Path) -> None:
    fixtures, body, other = staffed, guard_body(value=200), guard_body(value=200)
    first, second = fixtures.guard(body), fixtures.guard(other)
    assert (vote(fixtures, first["approval_id"], "approver"), vote(fixtures, second["approval_id"], "admin")) == (
        "approved",
        "approved",
    )
    policy_asks(fixtures, tmp_path, role="admin", people=2)

    by_approver, by_admin = fixtures.guard(body), fixtures.guard(other)
    for asked, counts in ((by_approver, False), (by_admin, True)):
        (before,) = earlier_votes(fixtures.console_pool, fixtures.tenant_id, uuid.UUID(asked["approval_id"]))
        assert (before.verdict, before.required_role, before.required_people, before.counts) == (
            "approve",
            "approver",
            1,
            counts,
        )
    # One more administrator is enough only where an administrator has spoken; the same one again is not another.
    assert vote(fixtures, by_approver["approval_id"], "admin") == "recorded"
    assert vote(fixtures, by_admin["approval_id"], "admin") == "recorded"
    assert "permit_token" not in fixtures.guard(other)
    assert vote(fixtures, by_admin["approval_id"], "admin2") == "approved"
    assert fixtures.guard(other)["status"] == "approved"
    with pytest.raises(Forbidden):
        vote(fixtures, by_approver["approval_id"], "approver")
    assert "permit_token" not in fixtures.guard(body)
    assert fixtures.broken_invariants() == []


def test_people_who_would_be_enough_under_the_new_terms_are_not_asked_again(staffed: Fixtures, tmp_path: Path) -> None:
    fixtures, body = staffed, guard_body(value=200)
    vote(fixtures, fixtures.guard(body)["approval_id"], "admin")
    policy_asks(fixtures, tmp_path, role="admin", people=1)
    assert fixtures.guard(body)["status"] == "approved"
    assert fixtures.broken_invariants() == []


def test_an_earlier_vote_does_not_count_for_a_reason_that_was_not_asked(staffed: Fixtures, tmp_path: Path) -> None:
    fixtures = staffed
    body = guard_body(value=200, params={"risk": {
        "duplicate_refund": False, "stale_window": False, "suspicious_reason": False, "customer_attempts_24h": 2}})  # fmt: skip
    vote(fixtures, fixtures.guard(body)["approval_id"], "admin")
    policy_asks(
        fixtures, tmp_path, role="admin", people=2, **{"customer_attempts_24h >= 3": "customer_attempts_24h >= 2"}
    )
    asked = fixtures.guard(body)
    (before,) = earlier_votes(fixtures.console_pool, fixtures.tenant_id, uuid.UUID(asked["approval_id"]))
    assert (asked["status"], before.counts) == ("pending", False)
    assert vote(fixtures, asked["approval_id"], "admin2") == "recorded"
    assert fixtures.broken_invariants() == []


def test_a_policy_that_asks_nobody_any_more_needs_no_terms(staffed: Fixtures, tmp_path: Path) -> None:
    fixtures, body = staffed, guard_body(value=200)
    approved(fixtures, body, role="approver", people=1)
    policy_asks(
        fixtures, tmp_path, role="admin", people=2, **{'allow_up_to:   {USD: "150.00"': 'allow_up_to:   {USD: "250.00"'}
    )
    assert fixtures.guard(body)["status"] == "approved"
    assert fixtures.broken_invariants() == []


def test_what_does_not_offer_approval_any_more_is_asked_again(staffed: Fixtures, tmp_path: Path) -> None:
    fixtures, body = staffed, guard_body(value=200)
    approved(fixtures, body, role="approver", people=1)
    policy_asks(fixtures, tmp_path, role="approver", people=1, digest=" b", **{
        "    then: APPROVAL_REQUIRED\n    reason: amount_needs_approval":
        "    then: APPROVAL_REQUIRED\n    reason: amount_needs_approval\n    approvable: false"})  # fmt: skip
    asked = fixtures.guard(body)
    row = find_approval(fixtures.console_pool, fixtures.tenant_id, uuid.UUID(asked["approval_id"]))
    assert asked["status"] == "pending" and row is not None and row.offers == ["reject", "handled"]
    assert fixtures.broken_invariants() == []


@pytest.mark.parametrize(
    ("function", "fence", "instead"),
    [
        ("sentinel.renew_permit", "if found and sentinel.approval_suffices(a, ask) then", "if found then"),
        ("sentinel.approval_suffices", "ask.required_people <= a.required_people", "true"),
        ("sentinel.approval_suffices", "(ask.required_role <> 'admin' or a.required_role = 'admin')", "true"),
        ("sentinel.counted_votes", "(p.role = 'admin' or p.role = role_wanted)", "true"),
    ],
    ids=["never compares", "forgets the number", "forgets the role", "counts every role"],
)
def test_mutants_whose_approvals_outlive_their_terms_are_caught(
    staffed: Fixtures, tmp_path: Path, function: str, fence: str, instead: str
) -> None:
    mutants.cut(staffed, function, fence, instead)
    with pytest.raises(AssertionError):
        test_each_change_of_terms_asks_again_exactly_where_it_became_stricter(staffed, tmp_path, "a guard asked again")


def vote_of_who_asked_first(fixtures: Fixtures, owner: str) -> str:
    """What an approver's vote comes to on what a key of the agent asks about the same again; a key of `owner`'s asked first."""
    agent = unique("agent").replace("_", "-")
    first = fixtures.new_key(owner=fixtures.operators[owner])
    second = fixtures.new_key(agent_id=agent, owner=fixtures.operators["admin"])
    account = unique("acct")
    body = guard_body(value=100, agent_id=agent, params={"account_ref": account})
    assert fixtures.post("action/guard", body, key=first).get_json()["decision"] == "ALLOW"
    let_permits_expire(fixtures)
    fixtures.run_housekeeping()
    fill_account(fixtures, account)
    asked = fixtures.post("action/guard", body, key=second).get_json()
    assert (asked["status"], asked["reason_code"]) == ("pending", "limit_exceeded")
    return vote(fixtures, asked["approval_id"], "approver")


def test_who_owns_the_key_that_asked_first_does_not_approve_what_another_key_of_its_agent_asks_again(
    fixtures: Fixtures,
) -> None:
    with pytest.raises(Forbidden):
        vote_of_who_asked_first(fixtures, "approver")
    assert vote_of_who_asked_first(fixtures, "viewer") == "approved"
    assert fixtures.broken_invariants() == []


def test_who_owns_a_key_of_the_agent_does_not_approve_what_a_proxy_asks_in_its_name(fixtures: Fixtures) -> None:
    fixtures.new_key(agent_id="one-agent", owner=fixtures.operators["approver"])
    proxys = fixtures.new_key()
    asked = fixtures.post("action/guard", guard_body(value=200, agent_id="one-agent"), key=proxys).get_json()
    with pytest.raises(Forbidden):
        vote(fixtures, asked["approval_id"], "approver")
    other = fixtures.post("action/guard", guard_body(value=200, agent_id="another-agent"), key=proxys).get_json()
    assert vote(fixtures, other["approval_id"], "approver") == "approved"


def test_who_may_approve_is_known_without_reading_the_keys_of_other_agents(fixtures: Fixtures) -> None:
    fixtures.new_key(agent_id="one-agent", owner=fixtures.operators["approver"])
    asked = fixtures.post("action/guard", guard_body(value=200, agent_id="one-agent")).get_json()
    fixtures.admin.execute(
        "insert into sentinel.agent_keys (tenant_id, key_id, principal_id, key_hash, hint, scopes, agent_id) select %s,"
        " gen_random_uuid(), gen_random_uuid(), sha256(n::text::bytea), '', '{}', 'agent-' || n from generate_series(1, 3000) n",
        [fixtures.tenant_id],
    )
    rows_read = "select seq_tup_read + idx_tup_fetch from pg_stat_xact_user_tables where relid = 'sentinel.agent_keys'::regclass"
    is_requester = "select sentinel.is_requester(a, %s) from sentinel.approvals a where approval_id = %s"
    with fixtures.admin.transaction():
        before = fixtures.admin.execute(rows_read).fetchone()
        found = fixtures.admin.execute(is_requester, [fixtures.operators["approver"], asked["approval_id"]]).fetchone()
        after = fixtures.admin.execute(rows_read).fetchone()
    assert found == (True,)
    assert 0 < after[0] - before[0] < 10


def test_mutant_that_looks_at_the_last_key_alone_is_caught(fixtures: Fixtures) -> None:
    mutants.cut(fixtures, "sentinel.is_requester", "where o.tenant_id = a.tenant_id and", "where false and")
    assert vote_of_who_asked_first(fixtures, "approver") == "approved"
