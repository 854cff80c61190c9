"""Switches over the console's API and by command: who may, what is told, and how it is refused."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sentinel.authority.actor import local_administrator
from sentinel.authority.gate_reports import record_gate_report
from sentinel.authority.policies import declare_policies
from sentinel.cli import switches
from tests.support.switch_fixtures import BOOK, FEE, passing_report

PATH = f"/ops/api/switches/{FEE}"
ON = {"canary_percent": 5, "reason": "ready"}


def record(fixtures: Any, **over: Any) -> None:
    """A passing report of the fee gate about the policy in force."""
    declare_policies(fixtures.authority)
    digest = fixtures.sql("select policy_digest from sentinel.policies_in_force where policy_id = 'small-refund'")[0][0]
    report = replace(passing_report(digest), **over)
    record_gate_report(fixtures.pool, local_administrator(fixtures.tenant_id), BOOK, report)


def shown(person: Any) -> dict[str, Any]:
    """The fee switch as the console shows it."""
    return next(one for one in person.get("/ops/api/switches").json["switches"] if one["name"] == FEE)


def test_an_administrator_turns_on_what_is_proven_and_an_approver_turns_it_off(fixtures: Any) -> None:
    app = fixtures.app()
    ann, abe = fixtures.person("ann", app=app), fixtures.person("abe", "admin", app)
    refused = abe.post(f"{PATH}/on", ON)
    assert (refused.status_code, refused.json["type"]) == (409, "urn:sentinel:problem:gate-not-passed")
    record(fixtures)
    assert shown(ann)["gate"] | {"open": True, "age_seconds": 0, "passed": True} == shown(ann)["gate"]
    assert ann.post(f"{PATH}/on", ON).status_code == 403
    assert abe.post(f"{PATH}/on", ON).json == {"name": FEE, "on": True, "canary_percent": 5, "already": False}
    assert (shown(ann)["on"], shown(ann)["canary_percent"], shown(ann)["changed_by"]) == (True, 5, "abe@demo.local")
    assert ann.post(f"{PATH}/off", {"reason": "not sure"}).json["on"] is False
    assert ann.post(f"{PATH}/off", {"reason": "again"}).json["already"] is True
    assert shown(ann)["reason"] == "not sure"


def test_a_flip_needs_its_token_a_name_and_a_clear_body(fixtures: Any) -> None:
    abe = fixtures.person("abe", "admin")
    assert abe.client.post(f"{PATH}/off", json={"reason": "x"}).status_code == 403
    for body in ({"reason": "x"}, {**ON, "canary_percent": 101}, {**ON, "canary_percent": "5"}, {**ON, "why": "x"}, {}):
        assert abe.post(f"{PATH}/on", body).status_code == 400
    missing = abe.post("/ops/api/switches/small_refund.refund_fees/off", {"reason": "x"})
    assert missing.status_code == 404 and FEE in missing.json["detail"]
    assert fixtures.sql("select count(*) from sentinel.switches") == [(0,)]


def run(fixtures: Any, *words: str, **env: str) -> Result:
    """`sentinel switches WORDS`, on the test's database."""
    terms = {"SENTINEL_DATABASE_URL": fixtures.url, "SENTINEL_TENANT_ID": None, "SENTINEL_POLICIES_DIR": None, **env}
    return CliRunner().invoke(switches.group, list(words), env=terms)


def test_the_commands_turn_on_for_a_few_percent_move_list_and_turn_off(fixtures: Any) -> None:
    fixtures.operator("abe", "admin")
    record(fixtures)
    terms = ("--reason", "ready", "--as", "abe@demo.local")
    assert run(fixtures, "on", FEE, "--canary", "5", *terms).output == f"{FEE} is on for 5 % of the accounts.\n"
    assert run(fixtures, "on", FEE, "--canary", "20", *terms).exit_code == 0
    listed = run(fixtures, "list").output
    assert re.search(rf"{re.escape(FEE)} +yes +20 % +open; report of 0 minutes ago, 198 of 200 right, 0 wrong", listed)
    assert "closed: there is no launch-gate report" in listed
    assert "abe@demo.local (local administrator): ready" in listed
    assert '"digest_in_force":"sha256:' in run(fixtures, "list", "--json").output
    assert run(fixtures, "off", FEE, "--reason", "enough").output == f"{FEE} is off.\n"
    assert run(fixtures, "off", FEE, "--reason", "enough").output == f"{FEE} was already off.\n"


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("on", FEE, "--canary", "5", "--as", "abe@demo.local"), 1, "there is no launch-gate report"),
        (("on", FEE, "--canary", "5", "--as", "ann@demo.local"), 1, "role admin"),
        (("on", FEE, "--as", "abe@demo.local"), 2, "--canary"),
        (("on", FEE, "--canary", "5", "--as", "eve@demo.local"), 1, "eve@demo.local"),
        (("off", "small_refund.refund_fees"), 1, f'did you mean "{FEE}"?'),
    ],
)
def test_a_command_that_is_refused_says_why_in_one_line(
    fixtures: Any, words: tuple[str, ...], code: int, text: str
) -> None:
    fixtures.operator("abe", "admin")
    fixtures.operator("ann")
    declare_policies(fixtures.authority)
    done = run(fixtures, *words, "--reason", "x")
    assert done.exit_code == code, done.output
    assert re.fullmatch(r"Error: [^\n]+\n", done.stderr)
    assert text in done.stderr


def test_without_its_file_nothing_can_be_turned_on_and_everything_off(fixtures: Any, tmp_path: Any) -> None:
    fixtures.operator("abe", "admin")
    env = {"SENTINEL_POLICIES_DIR": str(tmp_path)}
    listed = run(fixtures, "list", **env)
    assert (listed.exit_code, listed.stdout) == (0, "There is no switch.\n")
    assert "every switch is off" in listed.stderr
    done = run(fixtures, "on", "retail.standard", "--reason", "x", "--as", "abe@demo.local", **env)
    assert done.exit_code == 1 and "cannot be used" in done.stderr
    assert run(fixtures, "off", "retail.standard", "--reason", "x", **env).exit_code == 0


def test_every_command_explains_itself(fixtures: Any) -> None:
    for words in ((), ("list",), ("on",), ("off",)):
        done = run(fixtures, *words, "--help")
        assert done.exit_code == 0 and len(done.output) > 80
