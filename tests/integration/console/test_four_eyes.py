"""One administrator is not two people: by no key, account or password of their own making."""

from __future__ import annotations

import itertools
import re
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner

from ops_console.accounts import sessions, sign_in
from ops_console.accounts.operator_changes import change_operator
from ops_console.accounts.passwords import hash_password
from sentinel.authority.keys import WORKER_SCOPES, find_key_by_id, issue_key, rotate_key
from sentinel.authority.protected_changes import CONFIRM, DEACTIVATE, END_ACCESS, REACTIVATE, SET_ROLE
from sentinel.cli import operators
from sentinel.core.errors import EngineUnavailable, Forbidden
from tests import mutants
from tests.integration.console.conftest import Caller
from tests.integration.console.second_administrator import agreed
from tests.support.lost_connections import LosesConnection

NEW_PASSWORD = "a-password-of-the-admin's-own"


def caller_of(fixtures: Any, key_id: uuid.UUID) -> Caller:
    row = find_key_by_id(fixtures.pool, fixtures.tenant_id, key_id)
    assert row is not None
    return Caller(
        row.tenant_id, row.key_id, row.principal_id, row.agent_id, frozenset(row.scopes), row.owner_operator_id
    )


def key_made_on_the_page(fixtures: Any, browser: Any, owner: str | None = None) -> Caller:
    """A key that this administrator makes on the console's page, owned by somebody else or nobody."""
    made = uuid.uuid4()
    form = {"key_id": made, "scopes": ["guard", "worker"], **({"owner": owner} if owner else {})}
    answer = browser.submit("/ops/keys", **form)
    assert answer.status_code == 201, answer.get_data(as_text=True)
    return caller_of(fixtures, made)


def approved(fixtures: Any, approval_id: Any, *people: Any) -> str:
    """What came of these people's words, as the database has it."""
    for one in people:
        one.approve(approval_id)
    return str(fixtures.approval_status(approval_id))


@pytest.mark.parametrize("owner", [None, "viewer@demo.local"])
def test_who_made_a_key_does_not_approve_what_it_asks(fixtures: Any, owner: str | None) -> None:
    app = fixtures.app()
    fixtures.operator("viewer", "viewer")
    browser = fixtures.browser("admin", "admin", app, proved=True)
    asked = fixtures.guard("200.00", key_made_on_the_page(fixtures, browser, owner)).approval_id
    refused = fixtures.sign_in("admin@demo.local", app).approve(asked)
    assert (refused.status_code, "made" in refused.json["detail"]) == (403, True)
    page = browser.get(f"/ops/approvals/{asked}").get_data(as_text=True)
    assert "you own, created or rotated it" in page
    assert approved(fixtures, asked, fixtures.person("other", app=app)) == "approved"


def test_who_rotated_a_key_does_not_approve_what_either_asks(fixtures: Any) -> None:
    app = fixtures.app()
    browser = fixtures.browser("admin", "admin", app, proved=True)
    admin = fixtures.sign_in("admin@demo.local", app)
    old = issue_key(fixtures.pool, fixtures.tenant_id, agent_id="retail-refund-agent", scopes=WORKER_SCOPES)
    before = fixtures.guard("200.00", caller_of(fixtures, old.key_id)).approval_id
    new = uuid.uuid4()
    assert browser.submit(f"/ops/keys/{old.key_id}/rotate", key_id=new, overlap_hours="1").status_code == 201
    after = fixtures.guard("200.00", caller_of(fixtures, new)).approval_id
    assert [admin.approve(one).status_code for one in (before, after)] == [403, 403]
    # And a third turn by somebody else takes nobody off.
    third = rotate_key(fixtures.pool, fixtures.tenant_id, new)
    assert admin.approve(fixtures.guard("200.00", caller_of(fixtures, third.key_id)).approval_id).status_code == 403


def test_a_rule_without_makers_is_seen(fixtures: Any) -> None:
    fixtures.sql("update sentinel.agent_keys set maker_ids = '{}'")
    app = fixtures.app()
    browser = fixtures.browser("admin", "admin", app, proved=True)
    asker = key_made_on_the_page(fixtures, browser)
    fixtures.sql("update sentinel.agent_keys set maker_ids = '{}' where key_id = %s", asker.key_id)
    asked = fixtures.guard("200.00", asker).approval_id
    assert approved(fixtures, asked, fixtures.sign_in("admin@demo.local", app)) == "approved"


AHEAD = """set session_replication_role = replica;
update sentinel.approvals set created_at = created_at + interval '1 hour', expires_at = expires_at + interval '1 hour';
update sentinel.approval_votes set voted_at = voted_at + interval '1 hour';
set session_replication_role = origin"""
"""As if the clock had been set back by an hour since."""


def second_voice(fixtures: Any, change: str, app: Any, *, ahead: bool = False) -> tuple[str, int]:
    """What came of one administrator's two voices on a question for two people, and the second voice's answer.

    `ahead`: the question and the first voice are dated ahead of the clock.
    """
    bob = fixtures.operator("bob", "viewer" if change == "role" else "approver")
    browser = fixtures.browser("admin", "admin", app, proved=True)
    admin = fixtures.sign_in("admin@demo.local", app)
    asked = fixtures.approval("600.00")
    assert admin.approve(asked).json["result"] == "recorded"
    if ahead:
        fixtures.sql(AHEAD)
    if change == "created":
        form = {"operator_id": uuid.uuid4(), "email": "eve@demo.local", "role": "approver", "password": NEW_PASSWORD}
        assert browser.submit("/ops/operators", **form).status_code == 200
        email = "eve@demo.local"
    else:
        email = bob.email
        acts = {
            "password": ("password", {"password": NEW_PASSWORD}), "role": ("role", {"role": "approver", "seen": "viewer"}),
            "reactivate": ("reactivate", {}), "second-factor": ("reset-second-factor", {}),
        }  # fmt: skip
        if change == "reactivate":
            fixtures.sql("update sentinel.operators set active = false where operator_id = %s", bob.operator_id)
        if change == "second-factor":
            fixtures.sql(
                "insert into sentinel.second_factors (tenant_id, operator_id, secret, confirmed_at) values (%s, %s, 'x', now())",
                fixtures.tenant_id, bob.operator_id)  # fmt: skip
        word, form = acts[change]
        assert browser.submit(f"/ops/operators/{bob.operator_id}/{word}", **form).status_code in (200, 303)
    hashed = "update sentinel.operators set password_hash = %s where email = %s"
    fixtures.sql(hashed, fixtures.password_hash, email)
    answer = fixtures.sign_in(email, app).approve(asked)
    return str(fixtures.approval_status(asked)), int(answer.status_code)


CHANGES = ("created", "password", "role", "reactivate", "second-factor")


@pytest.mark.parametrize("change", CHANGES)
def test_an_account_that_was_just_changed_gives_no_second_voice(fixtures: Any, change: str) -> None:
    assert second_voice(fixtures, change, fixtures.app()) == ("pending", 403)


@pytest.mark.parametrize("change", CHANGES)
def test_nor_on_a_question_dated_ahead_of_a_clock_that_was_set_back(fixtures: Any, change: str) -> None:
    assert second_voice(fixtures, change, fixtures.app(), ahead=True) == ("pending", 403)


@pytest.mark.parametrize("change", CHANGES)
def test_an_account_whose_change_is_forgotten_would(fixtures: Any, change: str) -> None:
    fixtures.sql(
        "create function sentinel.forget() returns trigger language plpgsql as $$"
        " begin new.changed_by_another_at := '-infinity'; new.password_one_time := false; return new; end $$;"
        " create trigger forget before insert or update on sentinel.operators for each row execute function sentinel.forget()"
    )
    assert second_voice(fixtures, change, fixtures.app()) == ("approved", 200)


def test_what_is_asked_after_the_change_is_decided(fixtures: Any) -> None:
    app = fixtures.app()
    bob = fixtures.operator("bob", since="now")
    assert approved(fixtures, fixtures.approval(), fixtures.sign_in(bob, app)) == "approved"


def test_a_vote_given_before_the_change_still_counts(fixtures: Any) -> None:
    app, asked = fixtures.app(), fixtures.approval("600.00")
    bob, admin = fixtures.person("bob", app=app), fixtures.operator("admin", "admin")
    assert bob.approve(asked).json["result"] == "recorded"
    (operator_id,) = fixtures.sql("select operator_id from sentinel.operators where email = 'bob@demo.local'")[0]
    change_operator(fixtures.pool, admin, operator_id, END_ACCESS)
    fixtures.sql(
        "update sentinel.operators set changed_by_another_at = clock_timestamp() where operator_id = %s", operator_id
    )
    assert approved(fixtures, asked, fixtures.person("carl", app=app)) == "approved"


def test_a_vote_given_before_the_change_still_counts_where_the_clock_was_set_back_since(fixtures: Any) -> None:
    app, asked = fixtures.app(), fixtures.approval("600.00")
    bob, admin = fixtures.person("bob", app=app), fixtures.operator("admin", "admin")
    assert bob.approve(asked).json["result"] == "recorded"
    fixtures.sql(
        "set session_replication_role = replica;"
        " update sentinel.approval_votes set voted_at = voted_at + interval '1 hour'; set session_replication_role = origin"
    )
    (operator_id,) = fixtures.sql("select operator_id from sentinel.operators where email = 'bob@demo.local'")[0]
    change_operator(fixtures.pool, admin, operator_id, SET_ROLE, role="admin", seen="approver")
    assert approved(fixtures, asked, fixtures.person("carl", app=app)) == "approved"


def test_where_a_vote_counts_again_and_is_enough_whoever_voted_decides_by_repeating_theirs(fixtures: Any) -> None:
    app = fixtures.app()
    ada, bob = fixtures.operator("ada", "admin"), fixtures.operator("bob")
    cat = fixtures.at_page(fixtures.operator("cat").email, app, proved=True)
    asked = fixtures.approval("600.00")
    assert fixtures.sign_in(bob, app).approve(asked).json["result"] == "recorded"
    assert change_operator(fixtures.pool, ada, bob.operator_id, DEACTIVATE)
    vote = {"verdict": "approve", "reason": "looked at it", "digest": fixtures.digest(asked)}
    for _ in range(2):
        cat.submit(f"/ops/approvals/{asked}", **vote)
        page = cat.get(f"/ops/approvals/{asked}").get_data(as_text=True)
        assert "1 of 2 people have approved" in page and "Another person has to decide" in page
    assert change_operator(fixtures.pool, ada, bob.operator_id, REACTIVATE)
    page = cat.get(f"/ops/approvals/{asked}").get_data(as_text=True)
    assert "2 of 2 people have approved" in page and 'value="approve"' in page and 'value="reject"' not in page
    assert cat.submit(f"/ops/approvals/{asked}", **vote).status_code == 303
    assert fixtures.sql("select status, decided_by from sentinel.approvals") == [
        ("approved", "bob@demo.local, cat@demo.local")
    ]
    assert fixtures.sql("select count(*) from sentinel.events where kind = 'approval_vote'") == [(2,)]


def test_every_way_to_a_vote_refuses_alike(fixtures: Any) -> None:
    """The API, the page, the list of many, a token and the command line: all of them end in one function."""
    from click.testing import CliRunner

    from sentinel.cli.approvals import group

    app = fixtures.app()
    asked = fixtures.approval()
    bob = fixtures.operator("bob", "admin", since="now")
    person, browser = fixtures.sign_in(bob, app), fixtures.at_page(bob.email, app, proved=True)
    digest = fixtures.digest(asked)
    token = person.post("/ops/api/tokens", {}).json["token"]
    tries = {
        "api": person.approve(asked),
        "reject": person.reject(asked),
        "page": browser.submit(f"/ops/approvals/{asked}", verdict="approve", reason="mine", digest=digest),
        "token": app.test_client().post(
            f"/ops/api/approvals/{asked}/approve", json={"reason": "mine", "digest": digest},
            headers={"Authorization": f"Bearer {token}"},
        ),
    }  # fmt: skip
    assert {name: answer.status_code for name, answer in tries.items()} == dict.fromkeys(tries, 403)
    assert "before your account" in re.sub(r"\s+", " ", tries["page"].get_data(as_text=True))
    said = CliRunner().invoke(
        group,
        ["approve", str(asked), "--as", bob.email, "--reason", "mine"],
        env={"SENTINEL_DATABASE_URL": fixtures.url},
    )
    assert (said.exit_code, "before your account" in said.stderr) == (1, True), said.output
    assert fixtures.approval_status(asked) == "pending"


# A password that somebody else set ------------------------------------------------------------------------------------

OWN_PASSWORD = "quite-another-of-one's-own"


def sign_in_with(app: Any, email: str, password: str) -> tuple[Any, Any]:
    """(client, answer) of signing in by the API."""
    client = app.test_client()
    return client, client.post("/ops/api/session", json={"email": email, "password": password})


def made_operator(fixtures: Any, browser: Any, how: str) -> str:
    """The address of somebody whose password `browser`'s administrator set."""
    if how == "created":
        form = {"operator_id": uuid.uuid4(), "email": "eve@demo.local", "role": "admin", "password": NEW_PASSWORD}
        assert browser.submit("/ops/operators", **form).status_code == 200
        return "eve@demo.local"
    if how == "command line":
        env = {"SENTINEL_DATABASE_URL": fixtures.url}
        made = CliRunner().invoke(operators.group, ["create", "eve@demo.local", "--role", "admin", "--json"], env=env)
        fixtures.sql(
            "update sentinel.operators set password_hash = %s where email = 'eve@demo.local'",
            hash_password(NEW_PASSWORD),
        )
        assert made.exit_code == 0, made.output
        return "eve@demo.local"
    bob = fixtures.operator("bob", "approver")
    assert browser.submit(f"/ops/operators/{bob.operator_id}/password", password=NEW_PASSWORD).status_code == 200
    return str(bob.email)


@pytest.mark.parametrize("how", ["created", "reset", "command line"])
def test_a_password_that_somebody_else_set_works_once_and_only_to_set_ones_own(fixtures: Any, how: str) -> None:
    app = fixtures.app()
    email = made_operator(fixtures, fixtures.browser("admin", "admin", app, proved=True), how)
    client, first = sign_in_with(app, email, NEW_PASSWORD)
    assert (first.status_code, sign_in_with(app, email, NEW_PASSWORD)[1].status_code) == (200, 401)
    headers = {"X-CSRF-Token": first.json["csrf_token"]}
    assert client.get("/ops/api/session").json["must_set_password"] is True
    for method, path in (
        ("GET", "/ops/api/approvals"), ("POST", "/ops/api/halts"), ("POST", "/ops/api/tokens"), ("GET", "/ops/api/refunds/ledger"),
        ("POST", "/ops/operators"), ("POST", "/ops/account/second-factor"), ("POST", "/ops/api/session/step-up"),
    ):  # fmt: skip
        told = client.open(path, method=method, json={} if "/api/" in path else None, headers=headers)
        assert told.status_code == 403 and "set your own first" in told.get_data(as_text=True), path
    assert client.get("/ops/halts", headers={"Accept": "text/html"}).headers["Location"] == "/ops/account"
    page = client.get("/ops/account").get_data(as_text=True)
    assert "Choose your own" in page and "API tokens" not in page

    def set_own(new: str, old: str = NEW_PASSWORD) -> int:
        return int(client.post("/ops/api/session/password", json={"old": old, "new": new}, headers=headers).status_code)

    assert [
        set_own(NEW_PASSWORD),
        set_own(OWN_PASSWORD, "wrong wrong wrong"),
        set_own("short"),
        set_own(OWN_PASSWORD),
    ] == [400, 400, 400, 204]
    assert client.get("/ops/api/approvals").status_code == 200
    assert [sign_in_with(app, email, one)[1].status_code for one in (NEW_PASSWORD, OWN_PASSWORD, OWN_PASSWORD)] == [
        401,
        200,
        200,
    ]


@pytest.mark.usefixtures("patient")
def test_of_two_that_come_with_it_at_once_one_gets_in(fixtures: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    app = fixtures.app()
    email = made_operator(fixtures, fixtures.browser("admin", "admin", app, proved=True), "created")
    with ThreadPoolExecutor(2) as threads:
        answers = list(threads.map(lambda _: sign_in_with(app, email, NEW_PASSWORD)[1].status_code, range(2)))
    assert sorted(answers) == [200, 401]
    assert sign_in_with(app, email, NEW_PASSWORD)[1].status_code == 401
    # The mutant: a console that does not look at whether it was used.
    forgetful = sessions.INSERT_SESSION.replace("o.password_used_at is null", "true")
    monkeypatch.setattr(sessions, "INSERT_SESSION", forgetful)
    assert [sign_in_with(app, email, NEW_PASSWORD)[1].status_code for _ in range(2)] == [200, 200]


@pytest.mark.parametrize("lost_at", ["before the session", "its commit", "after the session"])
def test_a_password_that_works_once_is_not_used_up_by_a_sign_in_that_the_database_interrupts(
    fixtures: Any, monkeypatch: pytest.MonkeyPatch, lost_at: str
) -> None:
    """The finding: it was used up first, and the session opened after that; what failed in between locked its owner out."""
    app = fixtures.app()
    email = made_operator(fixtures, fixtures.browser("admin", "admin", app, proved=True), "created")

    def away(*_: Any, **__: Any) -> Any:
        raise EngineUnavailable("the database does not answer")

    def lost(pool: Any, **fields: Any) -> Any:
        return sessions.insert_session(LosesConnection(pool, is_committed=True), **fields)

    with monkeypatch.context() as patched:
        if lost_at == "after the session":
            patched.setattr(sign_in, "mark_success", away)
            patched.setattr(sign_in, "revoke_session", away)
        else:
            patched.setattr(sign_in, "insert_session", lost if lost_at == "its commit" else away)
        client, answer = sign_in_with(app, email, NEW_PASSWORD)
    if lost_at == "before the session":
        assert answer.status_code == 503
        client, answer = sign_in_with(app, email, NEW_PASSWORD)
    assert answer.status_code == 200
    assert client.get("/ops/api/session").json["must_set_password"] is True
    assert sign_in_with(app, email, NEW_PASSWORD)[1].status_code == 401
    assert fixtures.sql(
        "select count(*) from sentinel.operator_sessions s join sentinel.operators o using (operator_id) where o.email = %s", email
    ) == [(1,)]  # fmt: skip


# Accounts in one administrator's hands ---------------------------------------------------------------------------------


def two_admins(fixtures: Any, app: Any) -> tuple[Any, Any]:
    """(the browser of an administrator, another administrator's browser)."""
    return fixtures.browser("ada", "admin", app, proved=True), fixtures.browser("bea", "admin", app, proved=True)


def hand_over(fixtures: Any, ada: Any, how: str, app: Any, second: Any = None) -> tuple[str, Any]:
    """(id, signed-in person) of an approver's account that ada made, or whose password she reset, and that she holds now.

    With a `second` administrator that one has approved it.
    """
    if how == "made":
        made = str(uuid.uuid4())
        form = {"operator_id": made, "email": "eve@demo.local", "role": "approver", "password": NEW_PASSWORD}
        answer, email = ada.submit("/ops/operators", **form), "eve@demo.local"
    else:
        bob = fixtures.operator("bob")
        made, email = str(bob.operator_id), bob.email
        answer = ada.submit(f"/ops/operators/{made}/password", password=NEW_PASSWORD)
    assert (agreed(fixtures, ada, answer, second) if second else answer).status_code == 200
    fixtures.sql(
        "update sentinel.operators set password_one_time = false, password_hash = %s where email = %s",
        fixtures.password_hash,
        email,
    )
    return made, fixtures.sign_in(email, app)


@pytest.mark.parametrize("how", ["made", "reset"])
def test_two_accounts_in_one_administrators_hands_are_one_person_until_a_second_confirms(
    fixtures: Any, how: str
) -> None:
    app = fixtures.app()
    ada, bea = two_admins(fixtures, app)
    account, eve = hand_over(fixtures, ada, how, app, bea)
    asked = fixtures.approval("600.00")
    assert fixtures.sign_in("ada@demo.local", app).approve(asked).json["result"] == "recorded"
    refused = eve.approve(asked)
    assert (refused.status_code, "second administrator" in refused.json["detail"]) == (403, True)
    # The other way round as well, and with accounts of hers alone.
    other = fixtures.approval("600.00")
    assert eve.approve(other).json["result"] == "recorded"
    assert fixtures.sign_in("ada@demo.local", app).approve(other).status_code == 403
    # Ada does not confirm it, nor does an administrator of her making; the queue tells the others.
    assert ada.submit(f"/ops/operators/{account}/confirm").status_code == 403
    assert "has to confirm" in bea.get("/ops/approvals").get_data(as_text=True)
    assert "Confirm this account" in bea.get(f"/ops/operators/{account}").get_data(as_text=True)
    assert bea.submit(f"/ops/operators/{account}/confirm").status_code == 303
    assert "has to confirm" not in bea.get("/ops/approvals").get_data(as_text=True)
    assert eve.approve(asked).json["result"] == "approved"
    assert len(fixtures.sql("select 1 from sentinel.events where kind = 'operator_confirmed'")) == 1


@pytest.mark.parametrize("how", ["made", "reset"])
def test_an_account_is_in_its_makers_hands_also_while_the_second_administrator_is_unconfirmed(
    fixtures: Any, how: str
) -> None:
    app = fixtures.app()
    ada, bea = two_admins(fixtures, app)
    # Cat, who reset Bea's password, is gone, and nobody has confirmed Bea's account.
    fixtures.sql(
        "update sentinel.operators set changed_by = %s where email = 'bea@demo.local'",
        fixtures.operator("cat", "viewer").operator_id,
    )
    account, eve = hand_over(fixtures, ada, how, app, bea)
    asked = fixtures.approval("600.00")
    assert fixtures.sign_in("ada@demo.local", app).approve(asked).json["result"] == "recorded"
    assert eve.approve(asked).status_code == 403
    # Nobody is stuck: Ada confirms Bea, and then Bea the account.
    assert bea.submit(f"/ops/operators/{account}/confirm").status_code == 403
    ((second,),) = fixtures.sql("select operator_id from sentinel.operators where email = 'bea@demo.local'")
    assert ada.submit(f"/ops/operators/{second}/confirm").status_code == 303
    assert bea.submit(f"/ops/operators/{account}/confirm").status_code == 303
    assert eve.approve(asked).json["result"] == "approved"


def test_an_account_is_not_confirmed_while_its_password_is_the_one_that_its_maker_was_shown(fixtures: Any) -> None:
    app = fixtures.app()
    ada, bea = two_admins(fixtures, app)
    account = uuid.uuid4()
    form = {"operator_id": account, "email": "eve@demo.local", "role": "approver", "password": NEW_PASSWORD}
    shown = agreed(fixtures, ada, ada.submit("/ops/operators", **form), bea).get_data(as_text=True)
    refused = bea.submit(f"/ops/operators/{account}/confirm")
    assert (refused.status_code, "password of their own" in refused.get_data(as_text=True)) == (409, True)
    assert "Confirm this account" not in bea.get(f"/ops/operators/{account}").get_data(as_text=True)
    # Whoever was shown the password uses it: Ada, who would have had two votes.
    (first,) = re.findall(r'<code class="secret">([^<]+)<', shown)
    client, answer = sign_in_with(app, "eve@demo.local", first)
    assert answer.status_code == 200
    given = {"old": first, "new": OWN_PASSWORD}
    headers = {"X-CSRF-Token": answer.json["csrf_token"]}
    assert client.post("/ops/api/session/password", json=given, headers=headers).status_code == 204
    assert "Confirm this account" in bea.get(f"/ops/operators/{account}").get_data(as_text=True)
    assert bea.submit(f"/ops/operators/{account}/confirm").status_code == 303


def test_an_administrator_of_her_making_confirms_nothing(fixtures: Any) -> None:
    app = fixtures.app()
    ada, bea = two_admins(fixtures, app)
    form = {"operator_id": uuid.uuid4(), "email": "fay@demo.local", "role": "admin", "password": NEW_PASSWORD}
    agreed(fixtures, ada, ada.submit("/ops/operators", **form), bea)
    fixtures.sql(
        "update sentinel.operators set password_one_time = false, password_hash = %s where email like 'fay%%'",
        fixtures.password_hash,
    )
    account, _ = hand_over(fixtures, ada, "made", app, bea)
    assert (
        fixtures.at_page("fay@demo.local", app, proved=True).submit(f"/ops/operators/{account}/confirm").status_code
        == 403
    )


def test_an_account_of_her_making_does_not_approve_what_her_key_asks(fixtures: Any) -> None:
    app = fixtures.app()
    ada, bea = two_admins(fixtures, app)
    _, eve = hand_over(fixtures, ada, "made", app, bea)
    key_id = uuid.uuid4()
    agreed(fixtures, ada, ada.submit("/ops/keys", key_id=key_id, scopes=["guard", "worker"]), bea)
    asked = fixtures.guard("200.00", caller_of(fixtures, key_id)).approval_id
    assert eve.approve(asked).status_code == 403
    assert fixtures.sign_in("bea@demo.local", app).approve(asked).json["result"] == "approved", "the second did not ask"


def test_who_approves_that_another_is_shown_a_new_password_of_theirs_is_no_second_person(fixtures: Any) -> None:
    """Where there are two administrators, nobody else could have approved it, and nobody else can confirm the account."""
    app = fixtures.app()
    ada, bea = two_admins(fixtures, app)
    ((account,),) = fixtures.sql("select operator_id from sentinel.operators where email = 'bea@demo.local'")
    agreed(fixtures, ada, ada.submit(f"/ops/operators/{account}/password", password=NEW_PASSWORD), bea)
    fixtures.sql(
        "update sentinel.operators set password_one_time = false, password_hash = %s where operator_id = %s",
        fixtures.password_hash,
        account,
    )
    asked = fixtures.approval("600.00")
    assert fixtures.sign_in("ada@demo.local", app).approve(asked).json["result"] == "recorded"
    assert fixtures.sign_in("bea@demo.local", app).approve(asked).status_code == 403
    assert ada.submit(f"/ops/operators/{account}/confirm").status_code == 403
    done = CliRunner().invoke(
        operators.group, ["confirm", "bea@demo.local"], env={"SENTINEL_DATABASE_URL": fixtures.url}
    )
    assert done.exit_code == 0, done.output
    assert fixtures.sign_in("bea@demo.local", app).approve(asked).json["result"] == "approved"


def test_a_sole_administrator_needs_no_second(fixtures: Any) -> None:
    app = fixtures.app()
    ada = fixtures.browser("ada", "admin", app, proved=True)
    _, eve = hand_over(fixtures, ada, "made", app)
    asked = fixtures.approval("600.00")
    assert approved(fixtures, asked, fixtures.sign_in("ada@demo.local", app), eve) == "approved"


def test_a_count_that_does_not_look_at_hands_is_seen(fixtures: Any) -> None:
    app = fixtures.app()
    ada, bea = two_admins(fixtures, app)
    _, eve = hand_over(fixtures, ada, "made", app, bea)
    fixtures.sql("update sentinel.operators set changed_by = null")
    assert approved(fixtures, fixtures.approval("600.00"), fixtures.sign_in("ada@demo.local", app), eve) == "approved"


# Hands that hold hands -------------------------------------------------------------------------------------------------


def chain(fixtures: Any, *names: str) -> list[Any]:
    """Administrators, each of whom has the next one's account in hand."""
    people = [fixtures.operator(name, "admin") for name in names]
    for holder, held in itertools.pairwise(people):
        fixtures.sql(
            "update sentinel.operators set changed_by = %s where operator_id = %s", holder.operator_id, held.operator_id
        )
    return people


def votes_of_one_person(fixtures: Any) -> list[tuple[str, int]]:
    """What comes of two words of one person, who made an account that made another: on a question for two, and on one of their own key."""
    app = fixtures.app()
    first, _, last = chain(fixtures, "bea", "amy", "xia")
    one, other = fixtures.sign_in(first, app), fixtures.sign_in(last, app)
    for_two = fixtures.approval("600.00")
    assert one.approve(for_two).json["result"] == "recorded"
    second = other.approve(for_two)
    own = fixtures.approval("200.00", first)  # who owns a key of the agent decides nothing of that agent's from here on
    alone = other.approve(own)
    return [
        (str(fixtures.approval_status(asked)), int(answer.status_code))
        for asked, answer in ((for_two, second), (own, alone))
    ]


def test_an_account_made_by_an_account_of_ones_own_is_ones_own(fixtures: Any) -> None:
    assert votes_of_one_person(fixtures) == [("pending", 403)] * 2


def test_mutant_that_looks_one_hand_far_is_caught(fixtures: Any) -> None:
    with psycopg.connect(fixtures.url, autocommit=True) as admin:
        function = mutants.definition(admin, "sentinel.person_of")
        assert "hands := hands || following;" in function
        admin.execute(function.replace("hands := hands || following;", "return following;").encode())
    assert votes_of_one_person(fixtures) == [("approved", 200)] * 2


def test_nobody_confirms_an_account_that_is_their_own_through_another(fixtures: Any) -> None:
    first, _, last = chain(fixtures, "bea", "amy", "xia")
    with pytest.raises(Forbidden, match="cannot be confirmed by"):
        change_operator(fixtures.pool, first, last.operator_id, CONFIRM)
    other = fixtures.operator("cat", "admin")
    assert change_operator(fixtures.pool, other, last.operator_id, CONFIRM)


def test_accounts_that_have_each_other_in_hand_are_one_person(fixtures: Any) -> None:
    people = chain(fixtures, "amy", "bea", "cat", "dee")
    fixtures.sql(
        "update sentinel.operators set changed_by = %s where operator_id = %s",
        people[2].operator_id,
        people[1].operator_id,
    )
    fixtures.sql(
        "update sentinel.operators set changed_by = %s where operator_id = %s",
        people[1].operator_id,
        people[0].operator_id,
    )
    persons = {
        fixtures.sql("select sentinel.person_of(%s, %s)", one.tenant_id, one.operator_id)[0][0] for one in people
    }
    assert len(persons) == 1 and persons <= {one.operator_id for one in people[1:3]}
