"""What gives somebody power waits for a second administrator once there are two: by every page, command and function."""

from __future__ import annotations

import itertools
import json
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import click
import psycopg
import pytest
from click.testing import CliRunner
from psycopg import errors as pg

from ops_console.accounts.collect_change import collect_change
from ops_console.accounts.operator_changes import add_person, change_operator
from sentinel.authority.actor import Actor
from sentinel.authority.approvals import APPROVE, REJECT, resolve_approval
from sentinel.authority.housekeeping import run_housekeeping
from sentinel.authority.keys import find_key, issue_key, key_hash
from sentinel.authority.policies import declare_policies
from sentinel.authority.protected_changes import (
    REACTIVATE,
    RESET_SECOND_FACTOR,
    SET_ROLE,
    WaitsForAdministrator,
)
from sentinel.cli import main, operators
from sentinel.core.errors import Conflict, Forbidden
from sentinel.store.database import CONSOLE, with_role
from sentinel.store.ids import new_id
from tests.integration.console.left_open_forms import FORMS, filled, things
from tests.integration.console.page_roles import PAGES
from tests.integration.console.second_administrator import approve, waiting
from tests.integration.console.second_factors import with_secrets
from tests.support.logins import program_url

FIRST = "a first password of three words"
SECRETLESS = ("role", "let-in", "reset-second-factor")
ACTS = ("create", "password", "issue", "rotate", *SECRETLESS)


class Two:
    """Two administrators' browsers, somebody whom they can change, and a key."""

    def __init__(self, fixtures: Any, bobs_role: str = "viewer") -> None:
        self.fixtures, self.app = fixtures, with_secrets(fixtures)
        self.ada = fixtures.browser("ada", "admin", self.app, proved=True)
        self.bea = fixtures.browser("bea", "admin", self.app, proved=True)
        self.bob = fixtures.operator("bob", bobs_role)
        self.key_id = issue_key(fixtures.pool, fixtures.tenant_id, agent_id="an-agent").key_id
        fixtures.sql(
            "insert into sentinel.second_factors (tenant_id, operator_id, secret, confirmed_at) values (%s, %s, 'x', now())",
            fixtures.tenant_id, self.bob.operator_id)  # fmt: skip

    def ask(self, act: str, by: Any = None) -> Any:
        """The answer to asking for it by the pages."""
        by, bob = by or self.ada, f"/ops/operators/{self.bob.operator_id}"
        if act == "let-in":
            self.fixtures.sql(
                "update sentinel.operators set active = false where operator_id = %s", self.bob.operator_id
            )
        return {
            "create": lambda: by.submit("/ops/operators", operator_id=str(uuid.uuid4()), email="eve@demo.local", role="approver"),
            "password": lambda: by.submit(f"{bob}/password", password=FIRST),
            "issue": lambda: by.submit("/ops/keys", key_id=str(uuid.uuid4()), agent_id="a-b", scopes=["guard", "heartbeat"], label="one"),
            "rotate": lambda: by.submit(f"/ops/keys/{self.key_id}/rotate", key_id=str(uuid.uuid4()), overlap_hours="1"),
            "role": lambda: by.submit(f"{bob}/role", role="admin", seen="viewer"),
            "let-in": lambda: by.submit(f"{bob}/let-in"),
            "reset-second-factor": lambda: by.submit(f"{bob}/reset-second-factor"),
        }[act]()  # fmt: skip


@pytest.fixture
def two(fixtures: Any) -> Two:
    return Two(fixtures)


def power(fixtures: Any) -> set[tuple[str, str]]:
    """Who may do what: accounts with role and password, the factors that guard them, and keys that work."""
    people = fixtures.sql("select operator_id::text, role || active || md5(password_hash) from sentinel.operators")
    guards = fixtures.sql("select operator_id::text, secret from sentinel.second_factors")
    works = fixtures.sql(
        "select key_id::text, coalesce(expires_at::text, '') from sentinel.agent_keys where revoked_at is null"
    )
    return {*people, *guards, *works}


@pytest.mark.parametrize("act", ACTS)
def test_what_one_of_two_administrators_asks_waits_and_is_done_when_the_second_approves(two: Two, act: str) -> None:
    fixtures = two.fixtures
    if act == "let-in":
        fixtures.sql("update sentinel.operators set active = false where operator_id = %s", two.bob.operator_id)
    before = power(fixtures)
    approval_id = waiting(two.ask(act))
    assert power(fixtures) == before, "nothing is changed yet"
    if act in ("password", *SECRETLESS):
        assert waiting(two.ask(act)) == approval_id, "asking the same again is the same question"
    page = two.ada.get(f"/ops/approvals/{approval_id}").get_data(as_text=True)
    assert "Waiting for a second administrator" in page and "another administrator has to decide it" in page
    assert 'value="approve"' not in page and 'value="approve"' in two.bea.get(f"/ops/approvals/{approval_id}").text
    assert f"/ops/approvals/{approval_id}" in two.bea.get("/ops/approvals?kind=change").text
    # Neither who asked nor whoever is in their hands has a say, nor who is no administrator.
    fixtures.operator("fay", "admin")
    fixtures.operator("ann", "approver")
    fixtures.sql("update sentinel.operators set changed_by = (select operator_id from sentinel.operators where email = 'ada@demo.local')"
              " where email = 'fay@demo.local'")  # fmt: skip
    before = power(fixtures)
    for nobody in ("ada@demo.local", "fay@demo.local", "ann@demo.local"):
        assert fixtures.sign_in(nobody, two.app).approve(approval_id).status_code == 403, nobody
    assert power(fixtures) == before
    if act in SECRETLESS:
        approve(fixtures, approval_id, two.bea)
        assert two.ada.submit(f"/ops/approvals/{approval_id}/collect").status_code == 409
    else:
        agreed_on_page(two, approval_id, before)
    assert power(fixtures) != before
    assert "it was done" in two.ada.get(f"/ops/approvals/{approval_id}").text
    assert fixtures.sql("select outcome from sentinel.protected_changes") == [("done",)]


def agreed_on_page(two: Two, approval_id: str, before: Any) -> None:
    """The second approves; only who asked is given the password or key, once."""
    collect = f"/ops/approvals/{approval_id}/collect"
    assert two.ada.submit(collect).status_code == 409, "not approved yet"
    approve(two.fixtures, approval_id, two.bea)
    assert power(two.fixtures) == before, "done when it is collected"
    assert two.bea.submit(collect).status_code == 403
    assert "Collect it" in two.ada.get(f"/ops/approvals/{approval_id}").text
    made = two.ada.submit(collect)
    secret = made.text.partition('<code class="secret"')[2].partition(">")[2].partition("<")[0]
    assert made.status_code in (200, 201) and len(secret) >= 20
    again = two.ada.submit(collect)
    assert again.status_code == 409 and secret not in again.text and "collected before" in again.text
    for table in ("operators", "agent_keys", "protected_changes", "approvals", "events"):
        assert secret not in str(two.fixtures.sql(f"select t::text from sentinel.{table} t")), table


@pytest.mark.parametrize("act", ACTS)
def test_with_a_sole_administrator_nothing_waits(two: Two, act: str) -> None:
    """The mutant of the above, too: where the rule is gone, each of these acts takes effect at once."""
    two.fixtures.sql("update sentinel.operators set role = 'approver' where email = 'bea@demo.local'")
    if act == "let-in":
        two.fixtures.sql("update sentinel.operators set active = false where operator_id = %s", two.bob.operator_id)
    before = power(two.fixtures)
    answer = two.ask(act) if act != "create" else two.ada.submit(
        "/ops/operators", operator_id=str(uuid.uuid4()), email="eve@demo.local", role="approver", password=FIRST)  # fmt: skip
    assert answer.status_code in (200, 201, 303) and "/ops/approvals/" not in answer.headers.get("Location", "")
    assert power(two.fixtures) != before
    assert two.fixtures.sql("select count(*) from sentinel.approvals") == [(0,)]


@pytest.mark.parametrize("how", ["rejected", "expired"])
def test_what_is_rejected_or_runs_out_was_never_done(two: Two, how: str) -> None:
    fixtures, before = two.fixtures, power(two.fixtures)
    asked = [waiting(two.ask(act)) for act in ("create", "issue", "role")]
    if how == "rejected":
        person = fixtures.sign_in("bea@demo.local", two.app)
        assert [person.reject(one).json["result"] for one in asked] == ["rejected"] * 3
    else:
        fixtures.sql("update sentinel.approvals set expires_at = clock_timestamp()")
        assert fixtures.sign_in("bea@demo.local", two.app).approve(asked[2]).status_code == 409
        run_housekeeping(fixtures.authority.pool, 900)
    assert [fixtures.approval_status(one) for one in asked] == [how] * 3
    assert two.ada.submit(f"/ops/approvals/{asked[0]}/collect").status_code == 409
    assert power(fixtures) == before


def test_what_was_approved_is_collected_within_a_day_by_an_administrator_whose_second_still_counts(two: Two) -> None:
    fixtures = two.fixtures
    late, gone = waiting(two.ask("create")), waiting(two.ask("issue"))
    for one in (late, gone):
        approve(fixtures, one, two.bea)
    before = power(fixtures)
    fixtures.sql("set session_replication_role = replica; update sentinel.approvals set decided_at = decided_at - interval '25 hours'"
              f" where approval_id = '{late}'")  # fmt: skip
    answer = two.ada.submit(f"/ops/approvals/{late}/collect")
    assert answer.status_code == 409 and "more than a day ago" in answer.text
    fixtures.sql("update sentinel.operators set role = 'viewer' where email = 'bea@demo.local'")
    assert two.ada.submit(f"/ops/approvals/{gone}/collect").status_code == 409
    fixtures.sql("update sentinel.operators set role = 'admin' where email = 'bea@demo.local'")
    ada = fixtures.sql("select operator_id from sentinel.operators where email = 'ada@demo.local'")[0][0]
    fixtures.sql("update sentinel.operators set role = 'viewer' where operator_id = %s", ada)
    assert two.ada.submit(f"/ops/approvals/{gone}/collect").status_code == 403
    fixtures.sql("update sentinel.operators set role = 'admin' where operator_id = %s", ada)
    assert power(fixtures) == before
    assert two.ada.submit(f"/ops/approvals/{gone}/collect").status_code == 201


def test_a_crash_between_vote_and_act_leaves_both_undone_or_repeatable(two: Two) -> None:
    fixtures = two.fixtures
    role, key = waiting(two.ask("role")), waiting(two.ask("issue"))
    before = power(fixtures)
    broken = "alter table sentinel.events add constraint broken check (kind not in ('operator_role_set', 'key_created')) not valid"
    fixtures.sql(broken)
    word = {"verdict": "approve", "reason": "yes"}
    assert two.bea.submit(f"/ops/approvals/{role}", **word, digest=fixtures.digest(role)).status_code >= 500
    assert (fixtures.approval_status(role), fixtures.sql("select count(*) from sentinel.approval_votes")) == (
        "pending",
        [(0,)],
    )
    approve(fixtures, key, two.bea)
    assert two.ada.submit(f"/ops/approvals/{key}/collect").status_code >= 500
    assert power(fixtures) == before
    fixtures.sql("alter table sentinel.events drop constraint broken")
    approve(fixtures, role, two.bea)
    assert two.ada.submit(f"/ops/approvals/{key}/collect").status_code == 201
    assert fixtures.sql("select role from sentinel.operators where email = 'bob@demo.local'") == [("admin",)]


def test_two_who_approve_or_collect_at_once_do_it_once(two: Two) -> None:
    fixtures, admins = two.fixtures, [two.fixtures.operator(name, "admin") for name in ("cat", "dot")]
    role, key = uuid.UUID(waiting(two.ask("role"))), uuid.UUID(waiting(two.ask("issue")))
    (ada,) = fixtures.sql("select operator_id from sentinel.operators where email = 'ada@demo.local'")[0]
    asker = Actor(fixtures.tenant_id, ada, "ada@demo.local", "admin")

    def at_once(act: Callable[[Any], Any], people: list[Any]) -> list[str]:
        barrier = threading.Barrier(len(people))

        def one(person: Any) -> str:
            barrier.wait()
            try:
                act(person)
            except (Conflict, Forbidden) as error:
                return error.code
            return "done"

        with ThreadPoolExecutor(len(people)) as threads:
            return sorted(threads.map(one, people))

    for asked in (role, key):
        word = {"verdict": APPROVE, "reason": "yes", "digest": fixtures.digest(asked)}
        vote = lambda who, asked=asked, word=word: resolve_approval(fixtures.pool, who, asked, **word)  # noqa: E731
        assert at_once(vote, admins) == ["conflict", "done"]
    assert at_once(lambda who: collect_change(fixtures.pool, who, key), [asker, asker]) == ["conflict", "done"]
    assert fixtures.sql("select kind, count(*) from sentinel.events where kind in ('operator_role_set', 'key_created')"
                     " and body not like '%%local administrator%%' group by 1 order by 1") == [("key_created", 1), ("operator_role_set", 1)]  # fmt: skip


def test_an_account_in_ones_hands_asks_for_whoever_holds_it(two: Two) -> None:
    fixtures = two.fixtures
    fixtures.sql("update sentinel.operators set changed_by = (select operator_id from sentinel.operators where email = 'bea@demo.local')"
              " where email = 'ada@demo.local'")  # fmt: skip
    asked = waiting(two.ask("issue"))
    assert fixtures.sign_in("bea@demo.local", two.app).approve(asked).status_code == 403
    assert fixtures.sign_in(fixtures.operator("cat", "admin"), two.app).approve(asked).json["result"] == "approved"


def test_who_shuts_out_the_second_administrator_is_not_thereby_alone(two: Two) -> None:
    fixtures = two.fixtures
    (bea,) = fixtures.sql("select operator_id from sentinel.operators where email = 'bea@demo.local'")[0]
    assert two.ada.submit(f"/ops/operators/{bea}/shut-out").status_code == 303
    assert fixtures.sql("select active from sentinel.operators where operator_id = %s", bea) == [(False,)], (
        "this never waits"
    )
    before = power(fixtures)
    waiting(two.ask("create"))
    assert power(fixtures) == before
    # On the machine itself somebody else says that she is gone for good.
    done = CliRunner().invoke(
        operators.group, ["disable", "bea@demo.local"], env={"SENTINEL_DATABASE_URL": fixtures.url}
    )
    assert done.exit_code == 0, done.output
    assert two.ask("issue").status_code == 201


def test_taking_power_away_never_waits(two: Two) -> None:
    for path in (f"/ops/operators/{two.bob.operator_id}/end-sessions", f"/ops/operators/{two.bob.operator_id}/shut-out",
                 f"/ops/keys/{two.key_id}/revoke"):  # fmt: skip
        answer = two.ada.submit(path)
        assert (answer.status_code, "/ops/approvals" in answer.headers["Location"]) == (303, False), path
    assert two.fixtures.sql("select active from sentinel.operators where email = 'bob@demo.local'") == [(False,)]
    assert two.fixtures.sql("select count(*) from sentinel.agent_keys where revoked_at is null") == [(0,)]


def test_what_became_impossible_meanwhile_is_told_and_not_done(two: Two) -> None:
    fixtures, role = two.fixtures, waiting(two.ask("role"))
    fixtures.sql("update sentinel.operators set role = 'approver' where operator_id = %s", two.bob.operator_id)
    approve(fixtures, role, two.bea)
    assert fixtures.sql("select role from sentinel.operators where operator_id = %s", two.bob.operator_id) == [
        ("approver",)
    ]
    assert "another role by now" in two.ada.get(f"/ops/approvals/{role}").text


# What is asked is what is shown, to operators and to nobody else --------------------------------------------------------


def test_the_queue_shows_what_is_asked_exactly_and_without_a_secret(two: Two) -> None:
    fixtures = two.fixtures
    asked = waiting(two.ask("issue"))
    person = fixtures.sign_in("bea@demo.local", two.app)
    shown = person.get(f"/ops/api/approvals/{asked}").json
    assert shown["change_text"] == "New key for agent a-b with the scopes guard, heartbeat, without an end"
    assert (shown["requested_by"], shown["action"], shown["required_role"], shown["offers"]) == (
        "ada@demo.local", "key.issue", "admin", ["approve", "reject"])  # fmt: skip
    assert (
        shown["change"]["params"]["scopes"] == ["guard", "heartbeat"]
        and shown["change"]["requested_by"] == "ada@demo.local"
    )
    assert sorted(shown["change"]["params"]) == ["agent_id", "key_id", "label", "scopes"]
    handled = person.post(
        f"/ops/api/approvals/{asked}/handled", {"reason": "x", "reference": "y", "digest": shown["digest"]}
    )
    assert handled.status_code == 409
    assert (
        person.post(f"/ops/api/approvals/{asked}/approve", {"reason": "x", "digest": "sha256:other"}).status_code == 409
    )
    assert "New key for agent a-b" in two.bea.get(f"/ops/approvals/{asked}").text
    told = CliRunner().invoke(main.main, ["approvals", "show", asked], env={"SENTINEL_DATABASE_URL": fixtures.url})
    assert "New key for agent a-b" in told.output and "asked by: ada@demo.local" in told.output
    events = fixtures.sql("select kind, body from sentinel.events where kind = 'change_asked'")
    assert [kind for kind, _ in events] == ["change_asked"] and shown["digest"] in events[0][1]


def test_a_stored_request_that_was_altered_is_not_done(two: Two) -> None:
    fixtures = two.fixtures
    asked = waiting(two.ask("issue"))
    approve(fixtures, asked, two.bea)
    fixtures.sql("update sentinel.protected_changes set request = replace(request, 'heartbeat', 'report')")
    assert two.ada.submit(f"/ops/approvals/{asked}/collect").status_code == 409
    assert "is not the one that the digest names" in two.ada.get(f"/ops/approvals/{asked}").text


def test_no_agent_and_no_public_page_sees_what_administrators_ask(two: Two) -> None:
    from sentinel.authority.approvals import decided_since, find_approval

    fixtures, asked = two.fixtures, uuid.UUID(waiting(two.ask("role")))
    approve(fixtures, str(asked), two.bea)
    (start,) = fixtures.sql("select now() - interval '1 hour'")[0]
    assert decided_since(fixtures.authority.pool, fixtures.tenant_id, start, 100) == []
    row = find_approval(fixtures.authority.pool, fixtures.tenant_id, asked)
    assert row is not None and row.change
    fixtures.publish()
    assert fixtures.sql("select count(*) from sentinel.public_proofs") == [(0,)]
    assert "bob@" not in two.app.test_client().get("/ops/api/live/feed").get_data(as_text=True)


# Every way ------------------------------------------------------------------------------------------------------------

POWER = {
    "/ops/operators", "/ops/operators/<operator_id>/role", "/ops/operators/<operator_id>/password", "/ops/operators/<operator_id>/let-in",
    "/ops/operators/<operator_id>/reset-second-factor", "/ops/keys", "/ops/keys/<key_id>/rotate",
}  # fmt: skip
"""The routes that give somebody power."""
OWN = {"/ops/api/session/password", "/ops/account/password", "/ops/account/second-factor", "/ops/account/second-factor/confirm",
       "/ops/account/second-factor/remove"}  # fmt: skip
"""What changes one's own password and second factor."""
TYPED: dict[str, dict[str, str]] = {
    "/ops/operators": {"operator_id": "<new_id>", "email": "eve@demo.local", "role": "admin"},
    "/ops/operators/<operator_id>/password": {"password": FIRST},
    "/ops/keys": {"key_id": "<new_id>", "scopes": "guard"},
    "/ops/keys/<key_id>/rotate": {"key_id": "<new_id>", "overlap_hours": "0"},
}
"""Forms that would go through, where that of `left_open_forms` is made to be refused."""


def gained(before: set[tuple[str, str]], after: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """What is there now and was not before; a factor that went away counts as well."""
    return {one for one in after - before if "false" not in one[1]} | {one for one in before - after if one[1] == "x"}


def test_no_route_of_the_console_gives_power_on_one_administrators_word(fixtures: Any) -> None:
    """Every route that changes something is asked, with what its own form sends: a new one has to be named here or there."""
    declare_policies(fixtures.authority)
    app = with_secrets(fixtures)
    ada = fixtures.browser("ada", "admin", app, proved=True)
    fixtures.operator("bea", "admin")
    person = fixtures.sign_in("ada@demo.local", app)
    about = {**things(fixtures, ada), "new_id": str(uuid.uuid4())}
    bob = about["operator_id"]
    fixtures.sql("insert into sentinel.second_factors (tenant_id, operator_id, secret, confirmed_at)"
              " values (%s, %s, 'x', now())", fixtures.tenant_id, bob)  # fmt: skip
    changing = {rule.rule for rule in app.flask.url_map.iter_rules() if rule.methods - {"GET", "HEAD", "OPTIONS"}}
    pages = {route for method, route in PAGES if method == "POST"}
    assert changing >= POWER | OWN
    asked = set()
    for route in sorted(changing - OWN - {"/ops/sign-out", "/ops/api/session"}):
        if route.endswith("/let-in"):
            fixtures.sql("update sentinel.operators set active = false where operator_id = %s", bob)
        before = power(fixtures)
        (many,) = fixtures.sql("select count(*) from sentinel.protected_changes")[0]
        if route in pages:
            form = TYPED.get(route) or (FORMS[route].typed if route in FORMS else {})
            ada.submit(filled(route, about), **{name: filled(text, about) for name, text in form.items()})
        else:
            for method in app.flask.url_map.bind("").allowed_methods(filled(route, about)):
                body = {"reason": "x", "digest": about["digest"], "email": "eve@demo.local", "role": "admin"}
                if method in ("POST", "PUT", "PATCH", "DELETE"):
                    person.client.open(
                        filled(route, about), method=method, json=body, headers={"X-CSRF-Token": person.csrf}
                    )
        assert gained(before, power(fixtures)) == set(), route
        if fixtures.sql("select count(*) from sentinel.protected_changes")[0][0] > many:
            asked.add(route)
        fixtures.sql("update sentinel.operators set active = true, shut_out_by = null")
        fixtures.sql("update sentinel.operator_sessions set revoked_at = null, stepped_up_at = clock_timestamp()")
        fixtures.sql("update sentinel.agent_keys set revoked_at = null")
    assert asked == POWER, "a route that gives power asks a second administrator"


GIVES = {
    ("operators", "create"): ["eve@demo.local", "--role", "approver"], ("operators", "set-role"): ["bob@demo.local", "admin"],
    ("operators", "enable"): ["bob@demo.local"], ("operators", "reset-second-factor"): ["bob@demo.local"],
    ("keys", "create"): ["--agent-id", "a-b"], ("keys", "rotate"): ["<key_id>"],
}  # fmt: skip
"""The commands that give somebody power, with words that would go through."""
TAKES = {
    ("operators", "disable"),
    ("operators", "confirm"),
    ("operators", "list"),
    ("keys", "list"),
    ("keys", "revoke"),
}


def commands(group: click.Command, *names: str) -> set[tuple[str, ...]]:
    """Every command below a group."""
    if not isinstance(group, click.Group):
        return {names}
    context = click.Context(group)
    found = ((name, group.get_command(context, name)) for name in group.list_commands(context))
    return {one for name, command in found if command for one in commands(command, *names, name)}


def run(url: str, *words: str) -> Any:
    return CliRunner().invoke(main.main, list(words), env={"SENTINEL_DATABASE_URL": url, "SENTINEL_TENANT_ID": None})


def test_every_command_asks_unless_it_has_the_owners_login(two: Two) -> None:
    fixtures, console = two.fixtures, program_url(two.fixtures.url, CONSOLE)
    known = commands(main.main)
    assert {one for one in known if one[0] in ("operators", "keys")} == GIVES.keys() | TAKES, (
        "say whether it gives power"
    )
    # No other command can: it has no more than the console's role, or an authority's, for its own rows (below).
    for words, rest in GIVES.items():
        if words[1] == "enable":
            fixtures.sql("update sentinel.operators set active = false where operator_id = %s", two.bob.operator_id)
        before = power(fixtures)
        given = [*words, *(filled(one, {"key_id": str(two.key_id)}) for one in rest)]
        done = run(console, *given)
        assert (done.exit_code, "waits for a second administrator" in done.stderr) == (1, True), (words, done.output)
        assert power(fixtures) == before, words
        mine = run(fixtures.url, *given)
        assert mine.exit_code == 0 and power(fixtures) != before, (words, mine.output)
    assert fixtures.sql("select distinct requester_operator_id, agent_id from sentinel.approvals") == [
        (None, "local_administrator")
    ]


def test_what_was_asked_on_the_machine_is_approved_and_collected_there(two: Two) -> None:
    fixtures, console = two.fixtures, program_url(two.fixtures.url, CONSOLE)
    run(console, "keys", "create", "--agent-id", "a-b")
    ((asked,),) = fixtures.sql("select approval_id from sentinel.protected_changes")
    said = run(console, "approvals", "approve", str(asked), "--as", "bea@demo.local", "--reason", "yes")
    assert said.exit_code == 0, said.output
    assert run(console, "approvals", "collect", str(asked), "--as", "ada@demo.local").exit_code == 1
    made = run(console, "approvals", "collect", str(asked), "--json")
    row = find_key(fixtures.pool, key_hash(json.loads(made.stdout)["secret"]))
    assert row is not None and (row.agent_id, row.usable) == ("a-b", True)


def test_with_the_rule_gone_each_way_is_seen(two: Two) -> None:
    source = two.fixtures.sql("select pg_get_functiondef('sentinel.change_waits'::regproc)")[0][0]
    two.fixtures.sql(source.replace("2 <=", "99 <="))
    for act in ("issue", "role"):
        before = power(two.fixtures)
        two.ask(act)
        assert gained(before, power(two.fixtures)), act


# The database ---------------------------------------------------------------------------------------------------------

DIRECTLY = (
    "insert into sentinel.operators (tenant_id, operator_id, email, password_hash, role) values ('{tenant}', gen_random_uuid(), 'e@x', 'x', 'admin')",
    *(f"update sentinel.operators set {one} = {one}" for one in ("role", "active", "changed_by", "changed_by_another_at", "shut_out_by", "email")),
    "delete from sentinel.operators", "delete from sentinel.agent_keys", "insert into sentinel.agent_keys select * from sentinel.agent_keys",
    *(f"update sentinel.agent_keys set {one} = {one}" for one in ("revoked_at", "expires_at", "scopes", "maker_ids", "key_hash")),
    "insert into sentinel.protected_changes values ('{tenant}', gen_random_uuid(), '{{}}')", "update sentinel.protected_changes set request = ''",
    "delete from sentinel.protected_changes", "insert into sentinel.approvals select * from sentinel.approvals",
    "select sentinel.add_operator('{tenant}', gen_random_uuid(), 'e@x', 'x', 'admin', false, null, 'me', gen_random_uuid())",
    "select sentinel.change_operator('{tenant}', gen_random_uuid(), 'let_in', null, null, null, 'me', gen_random_uuid())",
    "select sentinel.make_change('{tenant}', null, 'me', '{{}}', '{{}}', true, gen_random_uuid())",
    "select sentinel.add_key('{tenant}', '{{}}', '{{}}', null, 'me', gen_random_uuid())",
    "select sentinel.rotate_key('{tenant}', '{{}}', '{{}}', null, 'me', gen_random_uuid())",
    "select sentinel.revoke_key('{tenant}', gen_random_uuid(), 'me', gen_random_uuid())",
)  # fmt: skip


def test_the_consoles_role_cannot_go_around_the_queue(two: Two) -> None:
    waiting(two.ask("role"))
    tenant, through = str(two.fixtures.tenant_id), []
    with psycopg.connect(with_role(two.fixtures.url, CONSOLE), autocommit=True) as connection:
        for statement in DIRECTLY:
            try:
                connection.execute(statement.format(tenant=tenant).encode())
                through.append(statement)
            except pg.InsufficientPrivilege:
                pass
    assert through == []
    # Nor by saying that nobody's account asks: only the owner's own login is the machine.
    with psycopg.connect(program_url(two.fixtures.url, CONSOLE), autocommit=True) as connection:
        asked = {"action": "operator.set_role", "resource": "operator/bob", "params": {
            "operator_id": str(two.bob.operator_id), "role": "admin", "seen": "viewer"}}  # fmt: skip
        ask = "select result from sentinel.request_change(%s, null, 'me', 'console', %s, '{}', %s, %s, 60)"
        row = connection.execute(ask, [tenant, json.dumps(asked), new_id(), new_id()]).fetchone()
        assert row == ("waits",)
        ((approval,),) = two.fixtures.sql("select approval_id from sentinel.protected_changes where asked_by is null")
        made = "select sentinel.make_approved_change(%s, %s, null, 'me', null, %s)"
        assert connection.execute(made, [tenant, approval, new_id()]).fetchone() == ("not_approved",)
    assert two.fixtures.sql("select role from sentinel.operators where email = 'bob@demo.local'") == [("viewer",)]


def test_services_say_that_it_waits(two: Two) -> None:
    fixtures = two.fixtures
    ada = fixtures.operator("amy", "admin")
    acts: tuple[Callable[[], Any], ...] = (
        lambda: issue_key(fixtures.pool, fixtures.tenant_id, agent_id=None, actor=ada),
        lambda: add_person(
            fixtures.pool, ada, operator_id=new_id(), email="eve@demo.local", password=FIRST, role="viewer"
        ),
        lambda: change_operator(fixtures.pool, ada, two.bob.operator_id, SET_ROLE, role="admin", seen="viewer"),
        lambda: change_operator(fixtures.pool, ada, two.bob.operator_id, RESET_SECOND_FACTOR),
    )
    numbers = itertools.count()
    for act in acts:
        with pytest.raises(WaitsForAdministrator) as waits:
            act()
        resolve_approval(fixtures.pool, fixtures.operator(f"q{next(numbers)}", "admin"), waits.value.approval_id, verdict=REJECT,
                         reason="no", digest=fixtures.digest(waits.value.approval_id))  # fmt: skip
    assert change_operator(fixtures.pool, ada, two.bob.operator_id, REACTIVATE) is False, (
        "what is so already does not wait"
    )
