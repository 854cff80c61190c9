"""The operators' commands: what they do, what scripts can read of them, and how they refuse."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sentinel.authority.keys import LIVE, find_key, looks_like_key, make_secret, secret_hash
from sentinel.cli import approvals, halts, in_doubt, keys, operators, orders, proof, public_ids, tenants
from sentinel.store.database import AUTHORITY, Pool, with_role

GROUPS = {
    "approvals": approvals,
    "halts": halts,
    "in-doubt": in_doubt,
    "keys": keys,
    "operators": operators,
    "orders": orders,
    "proof": proof,
    "public-ids": public_ids,
    "tenants": tenants,
}


def run(fixtures: Any, *words: str, stdin: str | None = None) -> Result:
    """`sentinel WORDS`, on the test's database."""
    env = {"SENTINEL_DATABASE_URL": fixtures.url, "SENTINEL_TENANT_ID": None}
    return CliRunner().invoke(GROUPS[words[0]].group, list(words[1:]), env=env, input=stdin)


def printed_json(fixtures: Any, *words: str, stdin: str | None = None) -> Any:
    """The JSON a command printed."""
    done = run(fixtures, *words, "--json", stdin=stdin)
    assert done.exit_code == 0, done.output
    assert done.stdout.count("\n") == 1
    return json.loads(done.stdout)


def refused(done: Result, code: int, text: str) -> None:
    assert done.exit_code == code, done.output
    assert re.fullmatch(r"Error: [^\n]+\n", done.stderr)
    assert text in done.stderr


@pytest.mark.parametrize("group", GROUPS)
def test_every_command_explains_itself(fixtures: Any, group: str) -> None:
    for name in ["", *GROUPS[group].group.commands]:
        done = run(fixtures, group, *([name] if name else []), "--help")
        assert done.exit_code == 0
        assert len(done.output) > 80


def test_an_approval_is_a_local_administrators_act_for_the_named_operator(fixtures: Any) -> None:
    ann, approval_id = fixtures.operator("ann"), fixtures.approval()
    assert [one["approval_id"] for one in printed_json(fixtures, "approvals", "list", "--status", "pending")] == [
        str(approval_id)
    ]
    assert (
        printed_json(
            fixtures, "approvals", "approve", str(approval_id), "--as", "ANN@demo.local", "--reason", "by phone"
        )["result"]
        == "approved"
    )
    assert fixtures.sql("select operator_id, via from sentinel.approval_votes") == [
        (ann.operator_id, "local_administrator")
    ]
    assert (
        '"via":"local_administrator"'
        in fixtures.sql("select body from sentinel.events where kind = 'approval_vote'")[0][0]
    )
    refused(
        run(fixtures, "approvals", "reject", str(approval_id), "--as", "ann@demo.local", "--reason", "x"),
        1,
        "decided before",
    )


def test_what_a_person_handled_is_listed_as_handled_and_not_as_rejected(fixtures: Any) -> None:
    fixtures.operator("ann")
    asked = ("--as", "ann@demo.local", "--reason", "paid at the till", "--reference", "till-7")
    assert run(fixtures, "approvals", "handled", str(fixtures.approval()), *asked).exit_code == 0
    listed = run(fixtures, "approvals", "list").output
    assert " handled " in listed and "rejected" not in listed
    found = {
        status: len(printed_json(fixtures, "approvals", "list", "--status", status))
        for status in ("handled", "rejected")
    }
    assert found == {"handled": 1, "rejected": 0}


def test_a_local_administrator_has_no_more_rights_than_the_named_operator(fixtures: Any) -> None:
    fixtures.operator("vic", "viewer")
    approval_id = str(fixtures.approval())
    refused(run(fixtures, "approvals", "approve", approval_id, "--as", "vic@demo.local", "--reason", "x"), 1, "role")
    refused(
        run(fixtures, "approvals", "approve", approval_id, "--as", "nobody@demo.local", "--reason", "x"),
        1,
        "not an operator",
    )
    refused(run(fixtures, "approvals", "approve", "x", "--as", "vic@demo.local", "--reason", "x"), 2, "must be an id")
    refused(
        run(
            fixtures,
            "approvals",
            "approve",
            str(fixtures.tenant_id),
            "--as",
            fixtures.operator("ann").email,
            "--reason",
            "x",
        ),
        1,
        "no approval",
    )
    assert run(fixtures, "approvals", "approve", approval_id, "--reason", "x").exit_code == 2


def test_a_two_person_approval_says_how_many_are_missing(fixtures: Any) -> None:
    fixtures.operator("ann")
    approval_id = str(fixtures.approval("600.00"))
    done = run(fixtures, "approvals", "approve", approval_id, "--as", "ann@demo.local", "--reason", "x")
    assert "1 of 2" in done.output


def test_a_global_halt_is_set_and_lifted_here(fixtures: Any) -> None:
    halt_id = printed_json(fixtures, "halts", "set", "--scope", "global", "--reason", "stop")["halt_id"]
    assert fixtures.guard("10.00").reason_code == "halted"
    assert [one["scope"] for one in printed_json(fixtures, "halts", "list")] == ["global"]
    assert printed_json(fixtures, "halts", "lift", halt_id, "--reason", "fine")["lifted"] is True
    assert fixtures.guard("10.00").decision == "ALLOW"
    refused(run(fixtures, "halts", "lift", halt_id, "--reason", "again"), 1, "no halt")
    refused(run(fixtures, "halts", "set", "--scope", "agent", "--reason", "x"), 2, "target")
    assert fixtures.sql("select distinct set_by, lifted_by from sentinel.halts") == [
        ("local administrator", "local administrator")
    ]


def test_a_global_halt_needs_no_tenant_to_be_named(fixtures: Any) -> None:
    other = fixtures.tenant("second-shop")
    halt_id = printed_json(fixtures, "halts", "set", "--scope", "global", "--reason", "incident 12")["halt_id"]
    assert fixtures.guard("10.00").reason_code == "halted"
    refused(run(fixtures, "halts", "list"), 2, "there are several tenants, choose one with --tenant")
    (listed,) = printed_json(fixtures, "halts", "list", "--tenant", str(other))
    assert (listed["halt_id"], listed["set_by"]) == (halt_id, "local administrator")
    assert printed_json(fixtures, "halts", "lift", halt_id, "--reason", "over")["lifted"] is True
    refused(
        run(fixtures, "halts", "set", "--scope", "tenant", "--reason", "x"),
        2,
        "there are several tenants, choose one with --tenant",
    )
    own = printed_json(fixtures, "halts", "set", "--scope", "tenant", "--reason", "x", "--tenant", str(other))[
        "halt_id"
    ]
    refused(
        run(fixtures, "halts", "lift", own, "--reason", "x"), 2, "there are several tenants, choose one with --tenant"
    )
    assert run(fixtures, "halts", "lift", own, "--reason", "x", "--tenant", str(other)).exit_code == 0


def test_no_operators_address_is_shown_to_other_tenants_with_a_global_halt(fixtures: Any) -> None:
    fixtures.operator("abe", role="admin")
    other, here = str(fixtures.tenant("second-shop")), ("--tenant", str(fixtures.tenant_id))
    named = ("--as", "abe@demo.local", *here)
    refused(run(fixtures, "halts", "set", "--scope", "global", "--reason", "x", *named), 1, "without --as")
    halt_id = printed_json(fixtures, "halts", "set", "--scope", "global", "--reason", "incident 12")["halt_id"]
    refused(run(fixtures, "halts", "lift", halt_id, "--reason", "x", *named), 1, "without --as")
    fixtures.sql("update sentinel.halts set set_by = 'abe@demo.local (local administrator)'")
    for owner in (*here, "--tenant", other)[1::2]:
        (listed,) = printed_json(fixtures, "halts", "list", "--tenant", owner)
        assert (listed["halt_id"], listed["set_by"]) == (halt_id, "local administrator"), "of an earlier version"


def test_a_doubt_is_resolved_in_an_administrators_name(fixtures: Any) -> None:
    fixtures.operator("ann")
    abe, recorded = fixtures.operator("abe", "admin"), fixtures.guard("10.00")
    early = run(
        fixtures, "in-doubt", "resolve", str(recorded.operation_id), "--executed", "--evidence", "x", "--as", abe.email
    )
    refused(early, 1, "not in doubt, it is allowed")
    fixtures.sql(
        "update sentinel.operation_states set status = 'started', started_at = clock_timestamp(), act_until = clock_timestamp()"
    )
    begun = run(
        fixtures, "in-doubt", "resolve", str(recorded.operation_id), "--executed", "--evidence", "x", "--as", abe.email
    )
    refused(begun, 1, "it is started: it becomes in doubt if no outcome is reported in time")
    fixtures.sql(
        "update sentinel.operation_states set status = 'in_doubt', started_at = clock_timestamp(),"
        " in_doubt_since = clock_timestamp(), in_doubt_reason = 'no_report'"
    )
    operation = str(recorded.operation_id)
    assert [one["operation_id"] for one in printed_json(fixtures, "in-doubt", "list")] == [operation]
    refused(
        run(fixtures, "in-doubt", "resolve", operation, "--executed", "--evidence", "x", "--as", "ann@demo.local"),
        1,
        "admin",
    )
    assert (
        printed_json(
            fixtures, "in-doubt", "resolve", operation, "--not-executed", "--evidence", "statement", "--as", abe.email
        )["executed"]
        is False
    )
    for flags in ((), ("--executed", "--not-executed"), ("--not-executed", "--executed")):
        done = run(fixtures, "in-doubt", "resolve", operation, *flags, "--evidence", "x", "--as", abe.email)
        refused(done, 2, "--not-executed")


def test_a_contradiction_is_resolved_only_as_the_one_that_was_listed(fixtures: Any) -> None:
    abe, recorded = fixtures.operator("abe", "admin"), fixtures.guard("10.00")
    fixtures.sql(
        "update sentinel.operation_states set status = 'in_doubt', started_at = clock_timestamp(),"
        " act_until = clock_timestamp(), in_doubt_since = clock_timestamp(), in_doubt_reason = 'contradiction'"
    )
    resolution = (
        "in-doubt",
        "resolve",
        str(recorded.operation_id),
        "--not-executed",
        "--evidence",
        "x",
        "--as",
        abe.email,
    )
    refused(run(fixtures, *resolution), 1, "a success was reported after")
    refused(run(fixtures, *resolution, "--since", "2026-05-03T10:00:00Z"), 1, "has changed since you looked at it")
    refused(run(fixtures, *resolution, "--since", "yesterday"), 2, "since: must be an RFC 3339 time")
    (listed,) = printed_json(fixtures, "in-doubt", "list")
    assert printed_json(fixtures, *resolution, "--since", listed["in_doubt_since"])["executed"] is False


def test_a_key_is_shown_once_kept_as_a_hash_rotated_and_revoked(fixtures: Any) -> None:
    deciding = Pool(with_role(fixtures.url, AUTHORITY), size=1)
    fixtures.operator("ann")
    made = printed_json(
        fixtures,
        "keys",
        "create",
        "--agent-id",
        "a1",
        "--owner",
        "ann@demo.local",
        "--expires-days",
        "30",
        "--scope",
        "guard",
    )
    found = find_key(deciding, secret_hash(made["key"]))
    assert found is not None
    assert (found.usable, found.agent_id, found.scopes) == (True, "a1", ["guard"])
    assert made["key"] not in str(fixtures.sql("select k::text from sentinel.agent_keys k"))
    second = printed_json(fixtures, "keys", "rotate", made["key_id"])
    (old, new) = printed_json(fixtures, "keys", "list")
    assert (old["usable"], new["usable"], old["principal_id"] == new["principal_id"], new["owner"]) == (
        True,
        True,
        True,
        "ann@demo.local",
    )
    fixtures.sql("update sentinel.agent_keys set expires_at = clock_timestamp() where key_id = %s", made["key_id"])
    refused(run(fixtures, "keys", "rotate", made["key_id"]), 1, "revoked or expired")
    printed_json(fixtures, "keys", "revoke", second["key_id"])
    file = run(fixtures, "keys", "create", "--agent-id", "keyfile")
    assert file.stdout.strip().startswith("snt_") and len(file.stdout.split()) == 1, "it may be a key file"
    assert "shown only once" in file.stderr
    for key in (made["key"], second["key"]):
        row = find_key(deciding, secret_hash(key))
        assert row is not None
        assert not row.usable
    refused(run(fixtures, "keys", "revoke", second["key_id"]), 1, "before")
    refused(run(fixtures, "keys", "create", "--agent-id", "a b"), 2, "agent_id")
    deciding.close()


def test_a_mistyped_key_is_known_by_its_checksum() -> None:
    key = make_secret(LIVE)
    assert looks_like_key(key)
    assert re.fullmatch(r"snt_live_[0-9A-Za-z]{36}", key)
    wrong = [key[:n] + ("a" if key[n] != "a" else "b") + key[n + 1 :] for n in range(len(key))]
    assert not any(looks_like_key(one) for one in [*wrong, key[:-1], key + "0", key + "\n", "", "\u0660" * 45])


def test_operators_are_made_changed_and_deactivated(fixtures: Any) -> None:
    made = printed_json(fixtures, "operators", "create", "Ann@Demo.local", "--role", "approver")
    assert made["email"] == "ann@demo.local"
    client = fixtures.app().test_client()
    body = {"email": "ann@demo.local", "password": made["password"]}
    assert client.post("/ops/api/session", json=body).json["role"] == "approver"
    printed_json(fixtures, "operators", "set-role", "ann@demo.local", "viewer")
    assert client.get("/ops/api/session").json["role"] == "viewer"
    printed_json(fixtures, "operators", "deactivate", "ann@demo.local")
    assert client.get("/ops/api/session").status_code == 401
    refused(run(fixtures, "operators", "create", "ann@demo.local", "--role", "admin"), 1, "already")
    for bad in ("ann", "ann@", "\u0430nn@demo.local", "a b@demo.local"):
        refused(run(fixtures, "operators", "create", bad, "--role", "admin"), 2, "email")


NOT_UTF8 = "Pr\udcfcfung"
"""What a program gets of a word that a terminal sends in Latin-1."""


@pytest.mark.parametrize("words", [
    ("keys", "create", "--label", NOT_UTF8), ("keys", "create", "--owner", NOT_UTF8), ("operators", "deactivate", NOT_UTF8),
    ("approvals", "list", "--agent", NOT_UTF8), ("approvals", "approve", "<approval>", "--as", NOT_UTF8, "--reason", "x"),
    ("approvals", "approve", "<approval>", "--as", "ann@demo.local", "--reason", "x", "--digest", NOT_UTF8),
])  # fmt: skip
def test_a_word_that_is_not_utf_8_is_refused_on_one_line(fixtures: Any, words: tuple[str, ...]) -> None:
    fixtures.operator("ann")
    asked = str(fixtures.approval()) if "<approval>" in words else ""
    done = run(fixtures, *(asked if word == "<approval>" else word for word in words))
    assert (done.exit_code, isinstance(done.exception, SystemExit)) == (2, True), repr(done.exception)
    assert re.search(r"^Error: [^\n]+\n\Z", done.stderr, re.MULTILINE), done.stderr


def test_a_keys_label_is_as_short_and_visible_as_on_the_page(fixtures: Any) -> None:
    for label in ("x" * 101, "left\u202eright"):
        assert run(fixtures, "keys", "create", "--label", label).exit_code == 2
    assert run(fixtures, "keys", "create", "--label", "").exit_code == 0
    assert run(fixtures, "keys", "create", "--label", "x" * 100).exit_code == 0


def test_everybodys_sessions_and_tokens_end_at_once_and_who_may_signs_in_again(fixtures: Any) -> None:
    app, other = fixtures.app(), fixtures.tenant("other")
    ann, ada = fixtures.person("ann", app=app), fixtures.person("ada", "admin", app)
    stranger = fixtures.sign_in(fixtures.operator("eve", "admin", other), app)
    scripts = [(app.test_client(), one.post("/ops/api/tokens", {}).json["token"]) for one in (ann, ada, stranger)]

    def statuses() -> list[tuple[int, int]]:
        of_scripts = [
            script.get("/ops/api/session", headers={"Authorization": f"Bearer {token}"}) for script, token in scripts
        ]
        of_people = [one.get("/ops/api/session") for one in (ann, ada, stranger)]
        return [(a.status_code, b.status_code) for a, b in zip(of_people, of_scripts, strict=True)]

    assert statuses() == [(200, 200)] * 3
    done = printed_json(fixtures, "operators", "sign-out-everybody", "--tenant", str(fixtures.tenant_id))
    assert statuses() == [(401, 401), (401, 401), (200, 200)]
    everybody = fixtures.sql("select email from sentinel.operators where tenant_id = %s", fixtures.tenant_id)
    assert done == {"operators": len(everybody)} and len(everybody) >= 2
    told = fixtures.sql("select count(*) from sentinel.events where kind = 'operator_access_ended'")
    assert told == [(len(everybody),)]
    assert fixtures.sign_in("ann@demo.local", app).get("/ops/api/session").status_code == 200


def test_a_given_password_is_read_from_standard_input_and_not_shown(fixtures: Any) -> None:
    made = printed_json(
        fixtures,
        "operators",
        "create",
        "ann@demo.local",
        "--role",
        "admin",
        "--password-stdin",
        stdin="a long enough password\n",
    )
    assert "password" not in made
    body = {"email": "ann@demo.local", "password": "a long enough password"}
    assert fixtures.app().test_client().post("/ops/api/session", json=body).status_code == 200
    for bad, rule in (("short", "12 to 256"), ("Password2024!", "is a common password")):
        given = ("operators", "create", "b@demo.local", "--role", "admin", "--password-stdin")
        refused(run(fixtures, *given, stdin=f"{bad}\n"), 2, rule)


def test_several_tenants_have_to_be_told_apart(fixtures: Any) -> None:
    other = printed_json(fixtures, "tenants", "create", "other")
    assert [one["label"] for one in printed_json(fixtures, "tenants", "list")] == ["public-demo", "other"]
    refused(run(fixtures, "keys", "list"), 2, "--tenant")
    assert printed_json(fixtures, "keys", "list", "--tenant", "other") == []
    assert printed_json(fixtures, "keys", "list", "--tenant", other["tenant_id"]) == []
    refused(run(fixtures, "keys", "list", "--tenant", "third"), 1, "no tenant")
    refused(run(fixtures, "tenants", "create", "other"), 1, "already")
    refused(run(fixtures, "tenants", "create", "Other Tenant"), 2, "label")


def test_without_a_database_the_commands_say_so(fixtures: Any) -> None:
    env = {"SENTINEL_DATABASE_URL": "postgresql://nobody:secret-word@127.0.0.1:1/nothing"}
    done = CliRunner().invoke(keys.group, ["list"], env=env)
    refused(done, 3, "cannot use the database at 127.0.0.1:1/nothing")
    assert "secret-word" not in done.output
    fixtures.sql("update public.schema_version set version_num = '0000'")
    refused(run(fixtures, "keys", "list"), 2, "sentinel migrate")


def test_a_password_on_standard_input_is_what_its_owner_types(fixtures: Any) -> None:
    given = ("operators", "create", "c@demo.local", "--role", "viewer", "--password-stdin")
    env = {"SENTINEL_DATABASE_URL": fixtures.url, "SENTINEL_TENANT_ID": None}
    latin = CliRunner().invoke(operators.group, given[1:], env=env, input="grüne Wiesen 7 und Rehe\n".encode("latin-1"))
    refused(latin, 2, "password: must be UTF-8")
    marked = CliRunner().invoke(operators.group, given[1:], env=env, input=b"\xef\xbb\xbfgruene Wiesen 7 und Rehe\r\n")
    assert marked.exit_code == 0, marked.output
    body = {"email": "c@demo.local", "password": "gruene Wiesen 7 und Rehe"}
    assert fixtures.app().test_client().post("/ops/api/session", json=body).status_code == 200
