"""The `sentinel` command as scripts use it: help, JSON, exit codes, one line of error."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import click
import psycopg
import pytest
from click.testing import CliRunner, Result

from ops_console.__main__ import command as console
from sentinel.cli import policy as policy_commands
from sentinel.cli.main import main
from sentinel.platform.resources import policies_dir
from tests.support.fixtures import guard_body
from tests.support.ports import free_port
from tests.support.served_programs import Served, run_warm_command
from tests.support.warm_process import run_warm_line
from worker.cli import main as worker
from worker.orders.cli import serve as intake
from worker.retail_refund_agent import main as refund_agent


def commands(group: click.Group = main, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Every command and group, as typed."""
    found = [path]
    context = click.Context(group)
    for name in group.list_commands(context):
        one = group.get_command(context, name)
        assert one is not None
        found += commands(one, (*path, name)) if isinstance(one, click.Group) else [(*path, name)]
    return found


def test_every_command_explains_itself() -> None:
    for path in commands():
        done = CliRunner().invoke(main, [*path, "--help"])
        assert done.exit_code == 0, path
        assert done.output.startswith("Usage:"), path
        first = done.output.split("\n\n")[1].strip()
        assert len(first) > 10, path


def test_the_command_that_halts_says_how_one_action_of_one_agent_is_named() -> None:
    told = " ".join(CliRunner().invoke(main, ["halts", "set", "--help"]).output.split())
    assert 'for agent_action "AGENT ACTION"' in told


def test_every_command_that_prints_data_prints_json_for_scripts(served: Served) -> None:
    approval = served.guard(guard_body(value=300))["approval_id"]
    asked = [
        ("tenants", "list"), ("keys", "list"), ("operators", "list"), ("approvals", "list"), ("halts", "list"), ("halts", "list", "--all"), ("in-doubt", "list"),
        ("policy", "check"), ("policy", "show"), ("policy", "test"), ("doctor",), ("migrate",),
    ]  # fmt: skip
    for command in asked:
        served.cli_json(*command)
    assert approval in {one["approval_id"] for one in served.cli_json("approvals", "list")}
    made = served.cli_json("keys", "create", "--label", "one")
    successor = served.cli_json("keys", "rotate", made["key_id"], "--overlap-hours", "0")
    assert successor["key"] != made["key"]
    assert served.get("heartbeat?agent_id=a", key=successor["key"]).status == 200
    served.cli_json("keys", "revoke", successor["key_id"])


@pytest.mark.parametrize("command, code", [
    (["approvals", "approve", "01a00000-0000-7000-8000-000000000000", "--as", "nobody@x.example", "--reason", "r"], 1),
    (["keys", "revoke", "01a00000-0000-7000-8000-000000000000"], 1), (["halts", "lift", "01a00000-0000-7000-8000-000000000000", "--reason", "r"], 1),
    (["keys", "list", "--tenant", "nobody"], 1), (["policy", "show", "nonsense"], 1), (["keys", "revoke", "not-an-id"], 2), (["approvals", "approve"], 2), (["nonsense"], 2), (["halts", "set", "--scope", "moon", "--reason", "r"], 2),
    (["in-doubt", "resolve", "01a00000-0000-7000-8000-000000000000", "--evidence", "e", "--as", "x"], 2),
])  # fmt: skip
def test_a_refusal_is_one_line_and_its_exit_code_says_which_kind(served: Served, command: list[str], code: int) -> None:
    done = served.cli(*command)
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith("Error: ")


PROGRAMS: dict[str, click.Command] = {
    "sentinel": main, "worker": worker, "retail-refund-agent": refund_agent, "python -m ops_console": console,
    "python -m worker.orders": intake,
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_wrong_use_of_any_command_is_one_line_that_says_where_its_help_is(name: str) -> None:
    program = PROGRAMS[name]
    for path in commands(program) if isinstance(program, click.Group) else [()]:
        done = CliRunner().invoke(program, [*path, "--bogus"], prog_name=name)
        assert (done.exit_code, done.stdout) == (2, ""), path
        assert done.stderr.count("\n") == 1, done.stderr
        assert done.stderr.startswith("Error: No such option '--bogus'"), done.stderr
        assert done.stderr.endswith(f"(see '{' '.join((name, *path))} --help')\n"), done.stderr


def test_without_a_command_a_group_says_so_on_one_line() -> None:
    for program in (main, worker):
        for path in [(), *{path[:-1] for path in commands(program) if len(path) > 1}]:
            done = CliRunner().invoke(program, path, prog_name="it")
            assert (done.exit_code, done.stdout) == (2, ""), path
            assert done.stderr == f"Error: Missing command (see '{' '.join(('it', *path))} --help')\n"


@pytest.mark.parametrize("command", [["keys", "list"], ["doctor"], ["migrate"], ["serve"]])
def test_without_a_database_the_exit_code_is_3_and_the_password_is_not_told(command: list[str]) -> None:
    url = "postgresql://someone:hunter2-secret@127.0.0.1:9/nothing"
    more = {"SENTINEL_SECRET_KEYS": "only-for-tests-0123456789abcdefghij", "SENTINEL_PORT": str(free_port())}
    done = run_warm_command(*command, SENTINEL_DATABASE_URL=url, **more)
    assert done.returncode == 3, done.stderr
    assert "hunter2" not in done.stdout + done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr


def test_a_gate_without_a_database_ends_as_every_command_does() -> None:
    url = "postgresql://someone:hunter2-secret@127.0.0.1:9/nothing"
    done = run_warm_command("gates", "run", "fee", SENTINEL_DATABASE_URL=url)
    assert done.returncode == 3, done.stderr
    assert done.stderr.strip().splitlines()[-1].startswith("Error: cannot use the database at 127.0.0.1:9/nothing: ")
    assert "hunter2" not in done.stdout + done.stderr


@pytest.mark.parametrize("env, names", [
    ({"SENTINEL_DEBUG": "1"}, ["SENTINEL_DEBUG"]), ({"SENTINEL_SECRET_KEYS": "changeme"}, ["SENTINEL_SECRET_KEYS"]), ({"SENTINEL_SECRET_KEYS": ""}, ["SENTINEL_SECRET_KEYS"]),
    ({"SENTINEL_SECRET_KEYS": "a" * 40}, ["SENTINEL_SECRET_KEYS"]), ({"SENTINEL_PORT": "abc", "SENTINEL_THREADS": "-1"}, ["SENTINEL_PORT", "SENTINEL_THREADS"]),
    ({"SENTINEL_MAX_STREAMS": "0"}, ["SENTINEL_MAX_STREAMS"]), ({"SENTINEL_REPORT_DEADLINE_SECONDS": "1"}, ["SENTINEL_REPORT_DEADLINE_SECONDS"]),
    ({"SENTINEL_LOG_LEVEL": "loud"}, ["SENTINEL_LOG_LEVEL"]),
])  # fmt: skip
def test_an_unsafe_configuration_does_not_start_and_names_every_fault(
    served: Served, env: dict[str, str], names: list[str]
) -> None:
    good = {"SENTINEL_DATABASE_URL": served.database_url, "SENTINEL_SECRET_KEYS": "only-for-tests-0123456789abcdefghij"}
    done = run_warm_command("serve", **{**good, **env})
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert all(name in done.stderr for name in names)


@pytest.fixture
def policies(tmp_path: Path) -> Path:
    """A copy of the shipped policies, to be broken."""
    shutil.copytree(policies_dir(), tmp_path / "policies", ignore=shutil.ignore_patterns("__pycache__", "*.py"))
    return tmp_path / "policies"


Check = Callable[..., Result]


@pytest.fixture
def check(policies: Path, monkeypatch: pytest.MonkeyPatch) -> Check:
    """`policy check` of that folder in this process; the worker's own check begins with everything imported."""

    def run_worker(command: list[str], *, env: dict[str, str], **_: object) -> subprocess.CompletedProcess[str]:
        return run_warm_line(command, env=env, timeout=150)

    monkeypatch.setattr(policy_commands, "subprocess", SimpleNamespace(run=run_worker))
    return lambda *options: CliRunner().invoke(main, ["policy", "check", str(policies), *options])


@pytest.mark.parametrize("old, new, named", [
    ("when: risk.stale_window", "when: risk.stale_windw", "stale_window"), ("then: DENY\n    reason: duplicate_refund", "then: DENNY\n    reason: duplicate_refund", "duplicate"),
    ("  - id: stale_window", "  - id: duplicate", "duplicate"), ("zone: UTC", "zone: UTC\nzoen: UTC", 'unknown key "zoen"'), ("version: retail", "version: x\nversion: retail", 'duplicate key "version"'),
])  # fmt: skip
def test_a_fault_in_a_policy_is_explained_with_file_line_and_rule(
    policies: Path, check: Check, old: str, new: str, named: str
) -> None:
    file = policies / "retail_refund.yaml"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))
    done = check()
    assert done.exit_code == 1
    assert f"{file.name}:" in done.stderr
    assert named in done.stderr
    fault = json.loads(check("--json").stdout)[0]
    place = text.splitlines().index(next(line for line in text.splitlines() if old.splitlines()[0] in line)) + 1
    assert abs(fault["line"] - place) <= 2, fault


def test_one_command_checks_the_whole_folder_with_what_only_the_worker_reads(policies: Path, check: Check) -> None:
    good = run_warm_command("policy", "check", str(policies))
    assert good.returncode == 0, good.stderr
    assert {"ok  routes.yaml", "ok  switches.yaml", "ok  cases/small_refund.yaml", "ok  gates/fee.yaml"} <= set(
        good.stdout.splitlines()
    )
    for name, old, new in (
        ("small_refund.yaml", "then: DENY", "then: DENNY"), ("routes.yaml", "scenario: fee", "scenario: fe"),
        ("gates/fee.yaml", "channel: private", "channel: privat"), ("switches.yaml", "default: false", "defalt: false"),
    ):  # fmt: skip
        (policies / name).write_text((policies / name).read_text().replace(old, new, 1))
    told = check()
    assert told.exit_code == 1
    for part in ('did you mean "DENY"?', 'did you mean "fee"?', 'did you mean "private"?', 'did you mean "default"?'):
        assert told.stderr.count(part) == 1, part
    files = {Path(fault["file"]).name for fault in json.loads(check("--json").stdout)}
    assert files == {"small_refund.yaml", "routes.yaml", "fee.yaml", "switches.yaml"}
    assert "worker check" in run_warm_command("policy", "check", "--help").stdout


def test_policy_test_tells_rules_that_no_case_reaches(policies: Path) -> None:
    told = run_warm_command("policy", "test", str(policies)).stdout
    assert "rule coverage" in told and "never matched" not in told
    (policies / "cases" / "small_refund.yaml").unlink()
    assert "; never matched: small-refund/" in run_warm_command("policy", "test", str(policies)).stdout
    cases = policies / "cases" / "retail_refund.yaml"
    cases.write_text(cases.read_text().replace("decision: ALLOW", "decision: DENY", 1))
    done = run_warm_command("policy", "test", str(policies))
    assert done.returncode == 1
    assert "FAILED" in done.stderr


ONE_ACTION = """policy: my-gifts
label: My gifts
version: my-gifts-v1
actions: [gift_card.issue]
facts: {amount: {type: money, from: params.amount, vouched_by: agent}}
numbers: {free: {USD: "25.00"}}
rules:
  - {id: small, says: The gift is small., when: amount_minor <= numbers.free, then: ALLOW, reason: within_policy_limit}
approval: {expires: 4h, role: approver, people: 1}
"""


def test_policy_test_fails_only_for_a_case_and_says_where_there_is_none(tmp_path: Path) -> None:
    (tmp_path / "my_gifts.yaml").write_text(ONE_ACTION)

    def tested() -> tuple[int, bool, str]:
        done = CliRunner().invoke(main, ["policy", "test", str(tmp_path), "--json"])
        return done.exit_code, json.loads(done.stdout)["passed"], done.stderr

    assert tested() == (0, True, f"no policy case in {tmp_path / 'cases'} and no tool case: nothing was tested\n")
    (tmp_path / "tools.yaml").write_text("tools: [{server: shop, tool: look, unguarded: It only reads.}]\n")
    case = "cases: [{name: a look, server: shop, tool: look, want: {unguarded: true}}]\n"
    (tmp_path / "tool_cases.yaml").write_text(case)
    assert tested() == (0, True, "")
    (tmp_path / "tool_cases.yaml").write_text(case.replace("unguarded: true", "refused: unmapped_tool"))
    assert tested() == (1, False, "")


def test_a_proof_is_intact_until_any_character_of_it_changes(served: Served, tmp_path: Path) -> None:
    answer = served.guard(guard_body())
    file = tmp_path / "pack.json"

    def verify() -> int:
        return CliRunner().invoke(main, ["proof", "verify", str(file), "--json"]).exit_code

    for content in (answer, answer["proof_pack"]):
        file.write_text(json.dumps(content))
        assert verify() == 0
    for name, value in answer["proof_pack"].items():
        file.write_text(json.dumps({**answer["proof_pack"], name: "x" if isinstance(value, str) else 12345}))
        assert verify() == 1, name
    file.write_text(json.dumps({**answer["proof_pack"], "amount": {"value": 12.5, "currency": "USD"}}))
    for command in ("verify", "compare"):
        done = CliRunner().invoke(main, ["proof", command, str(file)])
        assert (done.exit_code, done.stderr) == (
            2,
            "Error: proof_pack.amount.value: must not be a fraction: no proof pack contains one\n",
        )


def test_the_doctor_finds_what_was_planted_and_nothing_else(served: Served) -> None:
    assert served.cli("doctor").returncode == 0
    one = "where (tenant_id, subject, policy_id) = (%s, %s, %s)"
    with psycopg.connect(served.database_url, autocommit=True) as connection:
        served.guard(guard_body())
        row = connection.execute("select tenant_id, subject, policy_id from sentinel.budgets limit 1").fetchone()
        assert row is not None
        connection.execute("set session_replication_role = replica")
        connection.execute(f"update sentinel.budgets set held[1] = held[1] + 1 {one}".encode(), row)
        try:
            done = served.cli("doctor", "--json")
            assert done.returncode == 1
            assert [one["name"] for one in json.loads(done.stdout) if not one["ok"]] == ["held_differs"]
        finally:
            connection.execute(f"update sentinel.budgets set held[1] = held[1] - 1 {one}".encode(), row)


def test_the_doctor_finds_a_missing_safety_net(served: Served) -> None:
    with psycopg.connect(served.database_url, autocommit=True) as connection:
        found = connection.execute(
            "select tgname from pg_trigger where tgrelid = 'sentinel.event_rows'::regclass and not tgisinternal order by 1 limit 1"
        ).fetchone()
        assert found is not None, "events have no append-only trigger"
        connection.execute(f"alter table sentinel.event_rows disable trigger {found[0]}".encode())
        try:
            done = served.cli("doctor", "--json")
        finally:
            connection.execute(f"alter table sentinel.event_rows enable trigger {found[0]}".encode())
    assert done.returncode == 1
    bad = {check["name"]: check["detail"] for check in json.loads(done.stdout) if not check["ok"]}
    assert "sentinel.event_rows" in bad["database safety"]


REFUND = {"payment_intent": "pi_1", "amount": 40000}
KNOWN = {"currency": "usd", "account": "a", "duplicate": False, "stale": False, "suspicious": False, "attempts_24h": 1}


def test_tools_explain_says_what_a_call_becomes_and_what_the_policies_say(tmp_path: Path) -> None:
    (tmp_path / "facts.json").write_text(json.dumps(KNOWN))
    asked = ("tools", "explain", "stripe/create_refund", "-", "--facts", str(tmp_path / "facts.json"))
    found = json.loads(run_warm_command(*asked, "--json", stdin=json.dumps(REFUND)).stdout)
    assert (found["idempotency_key"], found["decision"]) == ("stripe-refund:pi_1:40000", "APPROVAL_REQUIRED")
    assert found["params"]["amount"] == {"value": 400, "currency": "USD"}
    table = run_warm_command(*asked, stdin=json.dumps(REFUND))
    assert table.returncode == 0 and "amount_needs_approval" in table.stdout and "Idempotency-Key" in table.stdout
    (tmp_path / "bytes.json").write_bytes(b"\xff")
    bytes_alone = CliRunner().invoke(
        main, ["tools", "explain", "stripe/create_refund", str(tmp_path / "bytes.json"), "--json"]
    )
    assert (bytes_alone.exit_code, json.loads(bytes_alone.stdout)["refused"]) == (1, "malformed_argument")
    refused = run_warm_command(*asked, "--json", stdin=json.dumps({**REFUND, "duplicate": False}))
    assert refused.returncode == 1 and json.loads(refused.stdout)["refused"] == "unmapped_argument"
    assert (
        'did you mean "stripe/create_refund"?'
        in run_warm_command("tools", "explain", "stripe/create_refnd", "-", stdin="{}").stderr
    )


def test_tools_list_names_every_tool_and_the_folder_check_its_faults(policies: Path, check: Check) -> None:
    rows = json.loads(run_warm_command("tools", "list", "--json").stdout)
    assert {row["tool"]: row["action"] for row in rows}["stripe/create_refund"] == "refund.create"
    assert "stripe/cancel_subscription" in run_warm_command("tools", "list").stdout
    assert "ok  tools.yaml" in check().stdout.splitlines()
    file = policies / "tools.yaml"
    file.write_text(
        file.read_text().replace("account_ref:                facts.account", "account_ref: args.payment_intent")
    )
    told = check()
    assert told.exit_code == 1 and "tools.yaml:" in told.stderr and 'tool "stripe/create_refund"' in told.stderr
    failed = run_warm_command("policy", "test", str(policies))
    assert failed.returncode == 1 and "params: wanted" in failed.stderr
