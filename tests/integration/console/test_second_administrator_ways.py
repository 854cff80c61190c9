"""No way around the second administrator: every route, every command, the database and the functions."""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import Callable
from typing import Any

import click
import psycopg
import pytest
from click.testing import CliRunner
from psycopg import errors as pg

from ops_console.accounts.operator_changes import add_person, change_operator
from sentinel.authority.approvals import REJECT, resolve_approval
from sentinel.authority.keys import find_key, issue_key, secret_hash
from sentinel.authority.policies import declare_policies
from sentinel.authority.protected_changes import (
    REACTIVATE,
    RESET_SECOND_FACTOR,
    SET_ROLE,
    WaitsForAdministrator,
)
from sentinel.cli import main
from sentinel.store.database import CONSOLE, with_role
from sentinel.store.ids import new_id
from tests.integration.console.left_open_forms import FORMS, filled, things, webhook_with_dead_letter
from tests.integration.console.page_roles import PAGES
from tests.integration.console.second_administrator import FIRST, Two, approve, power, waiting
from tests.integration.console.second_factors import with_secrets
from tests.support.logins import program_url

POWER = {
    "/ops/operators", "/ops/operators/<operator_id>/role", "/ops/operators/<operator_id>/password", "/ops/operators/<operator_id>/reactivate",
    "/ops/operators/<operator_id>/reset-second-factor", "/ops/keys", "/ops/keys/<key_id>/rotate", "/ops/webhooks/<endpoint_id>/enable",
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


def test_no_route_of_the_console_gives_power_on_one_administrators_vote(fixtures: Any) -> None:
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
        if route.endswith("/enable"):
            fixtures.sql("update sentinel.event_endpoints set disabled_at = now(), disabled_reason = 'administrator'")
        if route.endswith("/reactivate"):
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
        fixtures.sql("update sentinel.operators set active = true, deactivated_by = null")
        fixtures.sql("update sentinel.operator_sessions set revoked_at = null, stepped_up_at = clock_timestamp()")
        fixtures.sql("update sentinel.agent_keys set revoked_at = null")
    assert asked == POWER, "a route that gives power asks a second administrator"


GIVES = {
    ("operators", "create"): ["eve@demo.local", "--role", "approver"], ("operators", "set-role"): ["bob@demo.local", "admin"],
    ("operators", "reactivate"): ["bob@demo.local"], ("operators", "reset-second-factor"): ["bob@demo.local"],
    ("keys", "create"): ["--agent-id", "a-b"], ("keys", "rotate"): ["<key_id>"],
    ("webhooks", "add"): ["https://siem.shop.example/events"], ("webhooks", "enable"): ["<endpoint_id>"],
}  # fmt: skip
"""The commands that give somebody power, with words that would go through."""
TAKES = {
    ("operators", "deactivate"),
    ("operators", "confirm"),
    ("operators", "list"),
    ("operators", "sign-out-everybody"),
    ("keys", "list"),
    ("keys", "revoke"),
    *(
        ("webhooks", name)
        for name in ("list", "secret", "test", "rotate", "disable", "dead-letters", "resend", "discard")
    ),
}


def commands(group: click.Command, *names: str) -> set[tuple[str, ...]]:
    """Every command below a group."""
    if not isinstance(group, click.Group):
        return {names}
    context = click.Context(group)
    found = ((name, group.get_command(context, name)) for name in group.list_commands(context))
    return {one for name, command in found if command for one in commands(command, *names, name)}


def run(url: str, *words: str) -> Any:
    return CliRunner().invoke(main.main, list(words), env={
        "SENTINEL_DATABASE_URL": url, "SENTINEL_TENANT_ID": None, "SENTINEL_EXPORT_SECRETS": "only-for-tests-of-commands-0123456789",
    })  # fmt: skip


def test_every_command_asks_unless_it_has_the_owners_login(two: Two) -> None:
    fixtures, console = two.fixtures, program_url(two.fixtures.url, CONSOLE)
    known = commands(main.main)
    assert {one for one in known if one[0] in ("operators", "keys", "webhooks")} == GIVES.keys() | TAKES, (
        "say whether it gives power"
    )
    endpoint, _ = webhook_with_dead_letter(fixtures)
    two.arranged = {"dead_letter_not_passed", "webhooks_in_evidence"}
    about = {"key_id": str(two.key_id), "endpoint_id": endpoint}
    # No other command can: it has no more than the console's role, or an authority's, for its own rows (below).
    for words, rest in GIVES.items():
        if words == ("webhooks", "enable"):
            fixtures.sql("update sentinel.event_endpoints set disabled_at = now(), disabled_reason = 'administrator'")
        elif words[1] == "reactivate":
            fixtures.sql("update sentinel.operators set active = false where operator_id = %s", two.bob.operator_id)
        before = power(fixtures)
        given = [*words, *(filled(one, about) for one in rest)]
        done = run(console, *given)
        assert (done.exit_code, "waits for a second administrator" in done.stderr) == (1, True), (words, done.output)
        assert power(fixtures) == before, words
        mine = run(fixtures.url, *given)
        assert mine.exit_code == 0 and power(fixtures) != before, (words, mine.output)
    assert fixtures.sql("select distinct requester_operator_id, agent_id from sentinel.approvals") == [
        (None, "local_administrator")
    ]


@pytest.mark.parametrize("deactivated_before", [False, True])
def test_who_is_disabled_in_nobodys_name_counts_on_unless_it_was_with_the_owners_login(
    two: Two, deactivated_before: bool
) -> None:
    fixtures, console = two.fixtures, program_url(two.fixtures.url, CONSOLE)
    (bea,) = fixtures.sql("select operator_id from sentinel.operators where email = 'bea@demo.local'")[0]
    if deactivated_before:
        assert two.ada.submit(f"/ops/operators/{bea}/deactivate").status_code == 303
    for _ in range(2):
        assert run(console, "operators", "deactivate", "bea@demo.local").exit_code == 0
    assert fixtures.sql("select active from sentinel.operators where operator_id = %s", bea) == [(False,)]
    before = power(fixtures)
    for words in (
        ["keys", "create", "--agent-id", "a-b"],
        ["operators", "create", "eve@demo.local", "--role", "admin"],
    ):
        done = run(console, *words)
        assert (done.exit_code, "waits for a second administrator" in done.stderr) == (1, True), done.output
    waiting(two.ask("issue"))
    assert power(fixtures) == before
    assert run(fixtures.url, "operators", "deactivate", "bea@demo.local").exit_code == 0
    assert run(console, "keys", "create", "--agent-id", "a-b").exit_code == 0, "who holds the owner's login said so"
    assert two.ask("issue").status_code == 201


def test_who_was_disabled_in_nobodys_name_is_an_administrator_again_once_enabled(two: Two) -> None:
    fixtures, console = two.fixtures, program_url(two.fixtures.url, CONSOLE)
    assert run(console, "operators", "deactivate", "bea@demo.local").exit_code == 0
    assert run(fixtures.url, "operators", "reactivate", "bea@demo.local").exit_code == 0
    assert fixtures.sql("select active, deactivated_by from sentinel.operators where email = 'bea@demo.local'") == [
        (True, None)
    ]
    waiting(two.ask("issue"))


def test_a_role_that_was_asked_on_the_machine_is_set_only_in_place_of_the_role_it_had_then(two: Two) -> None:
    fixtures, console = two.fixtures, program_url(two.fixtures.url, CONSOLE)
    run(console, "operators", "set-role", "bob@demo.local", "admin")
    ((asked,),) = fixtures.sql("select approval_id from sentinel.protected_changes")
    page = two.bea.get(f"/ops/approvals/{asked}").text
    assert "Make operator bob@demo.local, until now a viewer, an administrator" in page
    run(fixtures.url, "operators", "set-role", "bob@demo.local", "approver")
    approve(fixtures, str(asked), two.bea)
    assert fixtures.sql("select role from sentinel.operators where email = 'bob@demo.local'") == [("approver",)]
    assert fixtures.sql("select outcome from sentinel.protected_changes") == [("changed",)]


def test_what_was_asked_on_the_machine_is_approved_and_collected_there(two: Two) -> None:
    fixtures, console = two.fixtures, program_url(two.fixtures.url, CONSOLE)
    run(console, "keys", "create", "--agent-id", "a-b")
    ((asked,),) = fixtures.sql("select approval_id from sentinel.protected_changes")
    said = run(console, "approvals", "approve", str(asked), "--as", "bea@demo.local", "--reason", "yes")
    assert said.exit_code == 0, said.output
    assert run(console, "approvals", "collect", str(asked), "--as", "ada@demo.local").exit_code == 1
    made = run(console, "approvals", "collect", str(asked), "--json")
    row = find_key(fixtures.pool, secret_hash(json.loads(made.stdout)["secret"]))
    assert row is not None and (row.agent_id, row.usable) == ("a-b", True)


def test_with_the_rule_gone_each_way_is_seen(two: Two) -> None:
    source = two.fixtures.sql("select pg_get_functiondef('sentinel.is_change_pending'::regproc)")[0][0]
    two.fixtures.sql(source.replace("2 <=", "99 <="))
    for act in ("issue", "role"):
        before = power(two.fixtures)
        two.ask(act)
        assert gained(before, power(two.fixtures)), act


# The database ---------------------------------------------------------------------------------------------------------

DIRECTLY = (
    "insert into sentinel.operators (tenant_id, operator_id, email, password_hash, role) values ('{tenant}', gen_random_uuid(), 'e@x', 'x', 'admin')",
    *(f"update sentinel.operators set {one} = {one}" for one in ("role", "active", "changed_by", "changed_by_another_at", "deactivated_by", "email")),
    "delete from sentinel.operators", "delete from sentinel.agent_keys", "insert into sentinel.agent_keys select * from sentinel.agent_keys",
    *(f"update sentinel.agent_keys set {one} = {one}" for one in ("revoked_at", "expires_at", "scopes", "maker_ids", "key_hash")),
    "insert into sentinel.protected_changes values ('{tenant}', gen_random_uuid(), '{{}}')", "update sentinel.protected_changes set request = ''",
    "delete from sentinel.protected_changes", "insert into sentinel.approvals select * from sentinel.approvals",
    "select sentinel.add_operator('{tenant}', gen_random_uuid(), 'e@x', 'x', 'admin', false, null, 'me', gen_random_uuid())",
    "select sentinel.change_operator('{tenant}', gen_random_uuid(), 'reactivated', null, null, null, 'me', gen_random_uuid())",
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
