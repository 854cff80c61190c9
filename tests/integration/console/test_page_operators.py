"""The operators' page: who manages people, what nobody may do to themselves, and that one admin always stays."""

from __future__ import annotations

import re
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from ops_console.accounts import operators
from ops_console.accounts.operator_changes import change_operator
from sentinel.authority.protected_changes import DEACTIVATE, SET_ROLE
from sentinel.core.errors import Conflict, Forbidden
from tests.integration.console.conftest import PASSWORD
from tests.integration.console.second_factors import SECRET, api_sign_in, enrol, with_secrets
from tests.integration.console.test_operators_commands import printed_json
from tests.integration.console.test_page_policies import words

ADDRESS = "/ops/operators"
FIRST = "a first password"
OWN = "one-that-only-bob-has-thought-of"


def set_own_password(app: Any, email: str, given: str, own: str) -> None:
    """Use the password that somebody else set for what it is good for."""
    client = app.test_client()
    session = client.post("/ops/api/session", json={"email": email, "password": given}).json
    headers = {"X-CSRF-Token": session["csrf_token"]}
    done = client.post("/ops/api/session/password", json={"old": given, "new": own}, headers=headers)
    assert done.status_code == 204, done.get_data(as_text=True)


def kinds(fixtures: Any) -> list[str]:
    return [kind for (kind,) in fixtures.sql("select kind from sentinel.events order by occurred_at, event_id")]


def test_an_admin_adds_changes_shuts_out_and_resets(fixtures: Any) -> None:
    app = fixtures.app(second_factor_secrets=(SECRET,))
    admin = fixtures.browser("ada", "admin", app)
    page = admin.get(ADDRESS).get_data(as_text=True)
    made = re.search(r'name="operator_id" value="([^"]+)"', page)
    suggested = re.search(r'name="password" type="text" value="([^"]{20})"', page)
    assert made is not None
    assert suggested is not None
    form = {"operator_id": made[1], "email": "Bob@Demo.local", "role": "approver", "password": suggested[1]}
    # Without a proof nothing happens and nothing typed is lost.
    refused = admin.submit(ADDRESS, **form)
    assert (refused.status_code, suggested[1] in refused.get_data(as_text=True), made[1] in refused.get_data(as_text=True)) == (400, True, True)  # fmt: skip
    form["proof"] = PASSWORD
    for _ in range(2):
        answer = admin.submit(ADDRESS, **form)
        assert (answer.status_code, suggested[1] in answer.get_data(as_text=True)) == (200, True)
    assert fixtures.sql("select count(*) from sentinel.operators where email = 'bob@demo.local'") == [(1,)]
    for fields, status in (
        ({"password": "another password"}, 409), ({"operator_id": str(uuid.uuid4())}, 409), ({"email": "\u0430nn@demo.local"}, 400),
        ({"email": "b@demo.local", "operator_id": str(uuid.uuid4()), "password": "short"}, 400), ({"role": "owner"}, 400),
        ({"email": "b@demo.local", "operator_id": str(uuid.uuid4()), "password": "Password2024!"}, 400),
        ({"operator_id": "x"}, 404),
    ):  # fmt: skip
        assert admin.submit(ADDRESS, **{**form, **fields}).status_code == status, fields
    bob, one = made[1], f"{ADDRESS}/{made[1]}"
    signed_in = fixtures.sign_in
    set_own_password(app, "bob@demo.local", suggested[1], OWN)
    assert api_sign_in(app, "bob@demo.local", OWN).json["role"] == "approver"
    assert admin.submit(f"{one}/role", role="admin", seen="viewer").status_code == 409
    for _ in range(2):
        assert admin.submit(f"{one}/role", role="viewer", seen="approver").status_code == 303
    assert api_sign_in(app, "bob@demo.local", OWN).json["role"] == "viewer"
    for _ in range(2):
        assert admin.submit(f"{one}/deactivate").status_code == 303
    assert api_sign_in(app, "bob@demo.local", OWN).status_code == 401
    page = admin.get(one).get_data(as_text=True)
    assert "was already deactivated" in page
    assert '<span class="chip deactivated">deactivated</span>' in page
    assert re.search(
        r"\.chip\.deactivated\b[^{}]*\{[^}]*var\(--bad\)", admin.get("/static/console.css").get_data(as_text=True)
    )
    assert admin.submit(f"{one}/reactivate").status_code == 303
    for easy in ("Password2024!", "bob@demo.local"):
        refused = admin.submit(f"{one}/password", password=easy)
        assert (refused.status_code, "is a common password" in refused.get_data(as_text=True)) == (400, True), easy
    reset = admin.submit(f"{one}/password", password=FIRST)
    assert (reset.status_code, FIRST in reset.get_data(as_text=True)) == (200, True)
    assert api_sign_in(app, "bob@demo.local", OWN).status_code == 401
    set_own_password(app, "bob@demo.local", FIRST, PASSWORD)
    bobs = fixtures.at_page("bob@demo.local", app)
    enrol(fixtures, bobs)
    listed = admin.get(ADDRESS).get_data(as_text=True)
    assert (listed.count('class="chip on"'), listed.count('class="chip active"')) == (1, 2)
    assert admin.submit(f"{one}/reset-second-factor").status_code == 303
    assert bobs.get("/ops/account").status_code == 303
    person = signed_in("bob@demo.local", app)
    assert admin.submit(f"{one}/end-sessions").status_code == 303
    assert person.get("/ops/api/session").status_code == 401
    assert kinds(fixtures) == [
        "operator_added", "operator_password_changed", "operator_role_set", "operator_deactivated", "operator_reactivated",
        "operator_password_reset", "operator_password_changed", "operator_second_factor_set", "operator_second_factor_reset", "operator_access_ended",
    ]  # fmt: skip
    bodies = str(fixtures.sql("select body from sentinel.events"))
    assert '"by":"ada@demo.local"' in bodies
    assert '"from":"approver"' in bodies
    for secret in (PASSWORD, suggested[1], "argon2"):
        assert secret not in bodies
    assert bob in bodies


@pytest.mark.parametrize("act", ["end-sessions", "reset-second-factor", "deactivate", "password"])
def test_what_signs_somebody_out_everywhere_ends_their_tokens_too(fixtures: Any, act: str) -> None:
    """A laptop that is gone has a script on it, whose token would go on approving."""
    app = with_secrets(fixtures)
    bob, other = (fixtures.operator(name) for name in ("bob", "carl"))
    scripts = [
        (app.test_client(), {"Authorization": f"Bearer {fixtures.sign_in(one, app).post('/ops/api/tokens', {}).json['token']}"})
        for one in (bob, other)
    ]  # fmt: skip
    enrol(fixtures, fixtures.at_page(bob.email, app))
    admin = fixtures.browser("ada", "admin", app, proved=True)
    page = admin.get(f"{ADDRESS}/{bob.operator_id}").text
    assert admin.submit(f"{ADDRESS}/{bob.operator_id}/{act}", password=FIRST).status_code in (200, 303)
    asked = [script.get("/ops/api/session", headers=headers).status_code for script, headers in scripts]
    assert asked == [401, 200], act
    assert fixtures.sql("select count(*) from sentinel.operator_sessions where revoked_at is null") == [(2,)], act
    assert "tokens" in page[page.index(f"/{act}") :].partition("</section>")[0], "and the form says so"


@pytest.mark.parametrize("role", ["viewer", "approver"])
def test_who_is_no_admin_neither_sees_nor_changes_people(fixtures: Any, role: str) -> None:
    person, other = fixtures.browser("vic", role, proved=True), fixtures.operator("bob")
    form = {"operator_id": str(uuid.uuid4()), "email": "eve@demo.local", "role": "admin", "password": FIRST}
    answers = [person.get(ADDRESS), person.get(f"{ADDRESS}/{other.operator_id}"), person.submit(ADDRESS, **form)]
    answers += [
        person.submit(f"{ADDRESS}/{other.operator_id}/{act}", role="viewer", seen="approver", password=FIRST)
        for act in ("role", "password", "deactivate", "reactivate", "end-sessions", "reset-second-factor")
    ]
    for answer in answers:
        assert (answer.status_code, "bob@" in answer.get_data(as_text=True)) == (403, False)
    assert kinds(fixtures) == []


def test_another_tenants_people_are_nobody(fixtures: Any) -> None:
    stranger = fixtures.operator("eve", "admin", fixtures.tenant("other"))
    admin = fixtures.browser("ada", "admin", proved=True)
    assert "eve@" not in admin.get(ADDRESS).get_data(as_text=True)
    acts = {"role": {"role": "viewer", "seen": "admin"}, "deactivate": {}, "password": {"password": FIRST}}
    for act, fields in acts.items():
        assert admin.submit(f"{ADDRESS}/{stranger.operator_id}/{act}", **fields).status_code == 404, act


def demoted(fixtures: Any, admins: list[Any]) -> int:
    """Both admins shut each other out at the same moment; how many of them are left."""

    def demote(pair: tuple[Any, Any]) -> None:
        by, whom = pair
        try:
            change_operator(fixtures.pool, by, whom.operator_id, DEACTIVATE)
        except (Conflict, Forbidden):  # nobody would be left; or the one who asks is none any more
            pass

    with ThreadPoolExecutor(max_workers=2) as threads:
        list(threads.map(demote, [(admins[0], admins[1]), (admins[1], admins[0])]))
    return int(fixtures.sql("select count(*) from sentinel.operators where role = 'admin' and active")[0][0])


def test_the_last_active_admin_stays_one_and_nobody_changes_themselves(fixtures: Any) -> None:
    ada, abe = fixtures.operator("ada", "admin"), fixtures.operator("abe", "admin")
    browser = fixtures.at_page(ada.email, proved=True)
    own = f"{ADDRESS}/{ada.operator_id}"
    role, password = {"role": "viewer", "seen": "admin"}, {"password": FIRST}
    acts = {"role": role, "password": password, "deactivate": {}, "end-sessions": {}, "reset-second-factor": {}}
    for act, fields in acts.items():
        assert browser.submit(f"{own}/{act}", **fields).status_code == 403, act
    assert "This is you" in browser.get(own).get_data(as_text=True)
    for _ in range(5):
        assert demoted(fixtures, [ada, abe]) == 1
        fixtures.sql("update sentinel.operators set active = true, deactivated_by = null")
    # A shut-out admin does not count, and what one had asked before takes nobody away.
    fixtures.sql("update sentinel.operators set active = false where operator_id = %s", ada.operator_id)
    for act, role in ((SET_ROLE, "viewer"), (DEACTIVATE, None)):
        with pytest.raises(Forbidden, match="role admin"):
            change_operator(fixtures.pool, ada, abe.operator_id, act, role=role, seen="admin" if role else None)
    # The mutant: without the two rules in the transaction nobody is left; with the last one alone somebody is.
    fixtures.sql("update sentinel.operators set active = true, deactivated_by = null")
    for function, rule, instead, left in (
        ("request_change", "not sentinel.is_active_admin(tenant, by_id)", "false", 1),
        ("change_operator", "return 'last_admin'", "perform 1", 0),
    ):
        source = fixtures.sql(f"select pg_get_functiondef('sentinel.{function}'::regproc)")[0][0]
        assert rule in source
        fixtures.sql(source.replace(rule, instead))
        assert demoted(fixtures, [ada, abe]) == left
        fixtures.sql("update sentinel.operators set active = true, deactivated_by = null")


def test_a_lost_second_factor_is_reset_at_the_machine(fixtures: Any) -> None:
    app = fixtures.app(second_factor_secrets=(SECRET,))
    browser = fixtures.browser("ann", app=app)
    enrol(fixtures, browser)
    assert api_sign_in(app, "ann@demo.local").status_code == 401
    assert printed_json(fixtures, "operators", "reset-second-factor", "ann@demo.local")["was_there"] is True
    assert printed_json(fixtures, "operators", "reset-second-factor", "ann@demo.local")["was_there"] is False
    assert browser.get("/ops/account").status_code == 303
    assert api_sign_in(app, "ann@demo.local").status_code == 200
    # At the machine itself the last admin can be changed too: nobody is locked out there.
    fixtures.operator("ada", "admin")
    printed_json(fixtures, "operators", "deactivate", "ada@demo.local")
    assert fixtures.sql("select active from sentinel.operators where role = 'admin'") == [(False,)]


def test_of_more_people_than_are_listed_the_page_says_so_and_who_is_to_be_confirmed_is_named(
    fixtures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The finding: the page called the first thousand all, and the queue of approvals named no account beyond them."""
    monkeypatch.setattr(operators, "MOST_PEOPLE", 3)
    abe = fixtures.browser("abe", "admin", proved=True)
    for name in ("ann", "bob", "zoe"):
        fixtures.operator(name, "viewer")
    fixtures.sql("update sentinel.operators set changed_by = (select operator_id from sentinel.operators where email = 'abe@demo.local') where email = 'zoe@demo.local'")  # fmt: skip
    page = words(abe.get("/ops/operators"))
    assert "All operators" not in page and "Only the first 3 are shown" in page and "zoe@demo.local" not in page
    assert "zoe@demo.local (created or last changed by abe@demo.local)" in words(abe.get("/ops/approvals"))
    fixtures.sql("update sentinel.operators set active = false where email = 'zoe@demo.local'")
    assert "zoe@demo.local" not in words(abe.get("/ops/approvals"))
    monkeypatch.setattr(operators, "MOST_PEOPLE", 5)
    assert "All operators" in words(abe.get("/ops/operators"))
