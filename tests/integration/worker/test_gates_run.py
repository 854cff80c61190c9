"""`sentinel gates run` from outside: real processes, shipped cases; a broken workflow or policy fails, a pass opens the switch."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import fields
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from sentinel.cli import gates as gates_command
from sentinel.cli.gates import _ended_by_signals, _sandbox
from sentinel.platform.command_line import InvalidUsage
from sentinel.platform.outside_systems import OUTSIDE_SYSTEMS
from sentinel.platform.resources import policies_dir
from tests.support.busy import overload
from tests.support.fixtures import Fixtures
from tests.support.forked_replay import PROGRAM as FORKED_REPLAY
from tests.support.logins import make_login
from tests.support.served_programs import clean_env, eventually, module, run_warm_command
from worker.gates.judge import NOT_WIRED
from worker.gates.simulated_systems import serve_simulated_systems
from worker.refunds.settings import WorkerSettings
from worker.settlement.registry import HttpSystem, Systems

SCRATCH = "select count(*) from pg_database where starts_with(datname, 'sentinel_scratch_')"
OWN_TEMP = Path(tempfile.gettempdir()) / f"gates-{os.getpid()}"
"""Other tests run gates at the same time; here only ours leave anything."""
CASES = """scenario: fee
systems: {private: private_refund}
base: {channel: private, currency: EUR, amount: "4.90", paid: "900.00", shipping_fee: same}
cases:
  - {id: plain, want: {end: execute}}
  - {id: declined, given: {card: decline}, want: {end: deny, reason: customer_declined}}
  - id: over_cap
    given: {amount: "15.01", images: [{kind: fee_receipt, amount: same}]}
    want: {end: person, reason: over_limit_early}
"""


def gates(
    fixtures: Fixtures, *arguments: str, program: str = FORKED_REPLAY, **env: str
) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    OWN_TEMP.mkdir(exist_ok=True)
    ran = run_warm_command(
        "gates", "run", *arguments, "--json", program=program, SENTINEL_DATABASE_URL=fixtures.url, TMPDIR=str(OWN_TEMP), **env
    )  # fmt: skip
    return ran, json.loads(ran.stdout) if ran.stdout else {}


def switch_on(fixtures: Fixtures) -> subprocess.CompletedProcess[str]:
    who = fixtures.one("select email from sentinel.operators where role = 'admin'")
    return run_warm_command("switches", "on", "small_refund.refund_fee", "--canary", "5", "--reason", "proven", "--as", who,
               SENTINEL_DATABASE_URL=fixtures.url)  # fmt: skip


def came_to_a_person(report: dict[str, Any]) -> set[str]:
    """What the cases that are not covered came to."""
    return {one["came_to"] for one in report["results"] if one["result"] == "not_covered"}


def nothing_is_left(fixtures: Fixtures) -> bool:
    return fixtures.one(SCRATCH) == 0 and not list(OWN_TEMP.glob("sentinel-gate-*"))


def test_the_shipped_fee_cases_pass_and_their_report_opens_the_switch_for_this_policy_alone(
    fixtures: Fixtures, tmp_path: Path
) -> None:
    assert "no launch-gate report" in switch_on(fixtures).stderr
    who = fixtures.one("select email from sentinel.operators where role = 'approver'")
    ran, report = gates(fixtures, "fee", "--record", "--as", who, "--report", str(tmp_path / "r.json"))
    assert ran.returncode == 0, ran.stderr
    assert report["passed"] and report["wrong_executions"] == [] and report["incorrect"] == 0
    assert report["covered"] >= 80 and report["lower_bound"] >= 0.95
    assert came_to_a_person(report) == {"person (critic_error)"}
    assert len(report["boundaries"]) == 6 * 3 * 2 and all(side["covered"] for side in report["boundaries"])
    assert json.loads((tmp_path / "r.json").read_text())["policy_digest"] == report["policy_digest"]
    assert nothing_is_left(fixtures)
    assert fixtures.one("select count(*) from refunds.ledger_entries") == 0

    other = "update sentinel.policies_in_force set policy_digest = %s where policy_id = 'small-refund'"
    fixtures.admin.execute(other, ["sha256:" + "0" * 64])
    assert "another text of the policy" in switch_on(fixtures).stderr
    fixtures.admin.execute(other, [report["policy_digest"]])
    assert switch_on(fixtures).returncode == 0


def test_the_shipped_compensation_cases_pass_without_any_outside_system(fixtures: Fixtures) -> None:
    ran, report = gates(fixtures, "compensation", program="sentinel.cli.main")
    assert ran.returncode == 0, ran.stderr
    assert came_to_a_person(report) == set(), report["results"]
    assert report["passed"] and report["covered"] >= 80 and report["not_covered"] == 0 and report["simulated"] == []
    assert report["unproven"] == ["price_difference", "platform_backend", "ticket", "stripe"], "none was tried"
    assert fixtures.one("select count(*) from sentinel.gate_reports") == 0


def test_what_needs_a_system_that_is_not_wired_counts_only_when_it_is_simulated(
    fixtures: Fixtures, tmp_path: Path
) -> None:
    photo = "images: [{kind: defect_photo}]"
    few = CASES.replace("fee\n", "defect\n", 1).replace("private: private_refund", "public: ticket_then_platform")
    few = few.replace("channel: private", f"channel: public, {photo}").replace(
        "images: [{kind: fee_receipt, amount: same}]", photo
    )
    (tmp_path / "cases.yaml").write_text(few.replace("15.01", "50.01"))
    ran, report = gates(fixtures, "defect", "--cases", str(tmp_path / "cases.yaml"))
    assert ran.returncode == 1 and not report["passed"]
    assert (report["correct"], report["incorrect"], report["not_covered"]) == (1, 0, 2), report["results"]
    assert any("no case was executed" in problem for problem in report["problems"])
    ran, report = gates(fixtures, "defect", "--simulate-systems")
    assert ran.returncode == 0, ran.stderr
    # On a busy machine a simulated system too may answer after its second; such a case is not covered, and says so.
    assert came_to_a_person(report) <= {f"person ({reason})" for reason in NOT_WIRED}, report["results"]
    assert report["passed"] and report["not_covered"] <= report["covered"] // 20 and "ticket" in report["simulated"]
    assert report["sandbox"] == [] and len(report["unproven"]) == 4


def test_the_operators_sandboxes_are_really_asked_and_the_report_names_them(fixtures: Fixtures) -> None:
    with serve_simulated_systems() as sandbox:
        env = {"SENTINEL_CRITIC_URL": f"{sandbox.url}/model_critic", "SENTINEL_CRITIC_MODEL": "simulated"}
        for name, path in (("PLATFORM", "platform_backend"), ("TICKET", "ticket")):
            env |= {f"WORKER_{name}_URL": f"{sandbox.url}/{path}", f"WORKER_{name}_KEY": "sandbox-key"}
        ran, report = gates(fixtures, "defect", "--sandbox", **env)
        assert ran.returncode == 0, ran.stderr
        assert (report["simulated"], report["sandbox"]) == ([], ["critic", "platform", "ticket"])
        assert report["unproven"] == ["price_difference", "stripe"]
        assert {system for system, _ in sandbox.effects} == {"platform_backend", "ticket"}


def test_a_sandbox_that_no_case_came_to_is_not_proven(fixtures: Fixtures) -> None:
    """Without the critic of its branch every case of the sandbox goes to a person, and the gate passes by the others."""
    with serve_simulated_systems() as sandbox:
        env = {"WORKER_PLATFORM_URL": f"{sandbox.url}/platform_backend", "WORKER_PLATFORM_KEY": "sandbox-key"}
        ran, report = gates(fixtures, "fee", "--sandbox", **env)
        assert ran.returncode == 0, ran.stderr
        assert report["passed"] and report["sandbox"] == ["platform"] and sandbox.effects == {}
        assert report["unproven"] == ["price_difference", "platform_backend", "ticket", "stripe"]


@pytest.mark.parametrize(
    "given, says",
    [(["--sandbox"], "needs an outside system"), (["--sandbox", "--simulate-systems"], "do not go together")],
)
def test_a_run_without_a_sandbox_or_with_both_kinds_is_wrong_use(
    fixtures: Fixtures, given: list[str], says: str
) -> None:
    ran, _ = gates(fixtures, "defect", *given)
    assert (ran.returncode, ran.stderr.count("\n")) == (2, 1)
    assert says in ran.stderr


def test_a_switch_that_settles_where_no_case_can_be_tried_is_refused_by_name(
    fixtures: Fixtures, tmp_path: Path
) -> None:
    policies = mutant(
        tmp_path, "routes.yaml",
        lambda text: text.replace("settles_to: private_refund", "settles_to: stripe", 1).replace("platform_backend", "stripe"),
    )  # fmt: skip
    ran, report = gates(fixtures, "fee", "--policies", str(policies))
    assert (ran.returncode, report) == (2, {})
    assert "small_refund.refund_fee settles in stripe, which a launch gate cannot test" in ran.stderr
    assert nothing_is_left(fixtures)


def test_every_outside_system_that_a_gate_tries_may_be_a_sandbox_with_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    spoken = {
        name for name, each in Systems.from_settings(WorkerSettings()).adapters.items() if isinstance(each, HttpSystem)
    }
    assert spoken == {each.name for each in OUTSIDE_SYSTEMS}
    tried = {name for each in OUTSIDE_SYSTEMS for name in (each.url_field, each.key_field)}
    tried |= {"critic_url", "critic_model", "critic_api_key"}
    given = {one.name: one.metadata["env"] for one in fields(WorkerSettings) if one.name in tried}
    assert given.keys() == tried, "each system has its two fields in the worker's settings"
    for variable in given.values():
        monkeypatch.setenv(variable, f"value-of-{variable}")
    assert _sandbox() == {name: f"value-of-{variable}" for name, variable in given.items()}


@pytest.mark.parametrize("seconds", ["0.1", "0.5"])
def test_a_replay_that_does_not_end_in_time_is_said_in_a_line_and_nothing_is_left(
    fixtures: Fixtures, seconds: str
) -> None:
    # Not forked: that one may be done within half a second.
    ran, report = gates(fixtures, "fee", "--timeout", seconds, program="sentinel.cli.main")
    assert (ran.returncode, report) == (2, {})
    assert ran.stderr.splitlines()[-1].startswith(f"Error: the replay did not end within {seconds} s")
    assert "Traceback" not in ran.stderr
    assert nothing_is_left(fixtures)


@pytest.fixture
def hangup_ends() -> Iterator[None]:
    """SIGHUP is not ignored here and in child processes, as it is where `nohup` began the tests."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hangup_ends")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_run_that_is_told_to_end_leaves_nothing(fixtures: Fixtures, number: signal.Signals) -> None:
    OWN_TEMP.mkdir(exist_ok=True)
    env = clean_env(SENTINEL_DATABASE_URL=fixtures.url, TMPDIR=str(OWN_TEMP))
    with subprocess.Popen(
        module("sentinel.cli.main", "gates", "run", "fee"),
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as program:
        assert eventually(lambda: fixtures.one(SCRATCH) == 1, within=30)
        program.send_signal(number)
        # One that is connecting meanwhile holds up the removal for PostgreSQL's authentication_timeout, a minute.
        _, said = program.communicate(timeout=120 * overload())
    # Python ends by SIGINT where the interrupt met code that is compiled from a text, as of a named tuple.
    assert program.returncode in (1, -signal.SIGINT) and "Aborted!" in said and "Traceback" not in said
    assert nothing_is_left(fixtures)


@pytest.mark.usefixtures("hangup_ends")
def test_a_signal_whose_interrupt_python_dropped_ends_the_run_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    class Finalized:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGHUP)

    dropped: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda found: dropped.append(found.exc_type))
    with _ended_by_signals() as raise_if_ended:
        Finalized()
        assert dropped == [KeyboardInterrupt]
        with pytest.raises(KeyboardInterrupt):
            raise_if_ended()


def test_a_replay_that_is_given_up_has_ended_before_its_database_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    endings: list[int | None] = []
    with subprocess.Popen(["sleep", "60"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:

        @contextmanager
        def scratch(*_: object) -> Iterator[None]:
            try:
                yield
            finally:
                endings.append(program.poll())

        monkeypatch.setattr(gates_command, "_program", lambda: nullcontext(program))
        monkeypatch.setattr(gates_command, "scratch_environment", scratch)
        monkeypatch.setattr(gates_command, "_job", lambda *_: {})
        monkeypatch.setattr(gates_command, "configure_logs", Mock())
        try:
            with pytest.raises(InvalidUsage, match="the replay did not end within"):
                gates_command._replayed(None, Mock(), Mock(), Mock(), "fee", Path("fee.yaml"), {}, timeout=0.05)
        finally:
            program.kill()
    assert endings == [-signal.SIGKILL]


def mutant(folder: Path, file: str, change: Callable[[str], str]) -> Path:
    """The shipped policies with one change."""
    shutil.copytree(policies_dir(), folder / "policies")
    path = folder / "policies" / file
    changed = change(path.read_text())
    assert changed != path.read_text()
    path.write_text(changed)
    return folder / "policies"


@pytest.mark.parametrize(
    ("file", "change", "case"),
    [
        ("routes.yaml", lambda text: text.replace("confirm_card: true", "confirm_card: false", 1), "declined"),
        ("small_refund.yaml", lambda text: text.replace('EUR: "15.00"', 'EUR: "15.01"', 1), "over_cap"),
    ],
    ids=["nobody is asked", "a cap one unit higher"],
)
def test_a_mutant_that_pays_what_it_should_not_fails_with_wrong_executions(
    fixtures: Fixtures, tmp_path: Path, file: str, change: Callable[[str], str], case: str
) -> None:
    (tmp_path / "cases.yaml").write_text(CASES)
    policies = mutant(tmp_path, file, change)
    ran, report = gates(fixtures, "fee", "--cases", str(tmp_path / "cases.yaml"), "--policies", str(policies))
    assert ran.returncode == 1 and not report["passed"]
    assert [wrong["case"] for wrong in report["wrong_executions"]] == [case]
    assert nothing_is_left(fixtures)


def test_cases_that_cannot_be_read_end_in_one_line_and_leave_nothing(fixtures: Fixtures, tmp_path: Path) -> None:
    (tmp_path / "cases.yaml").write_text(CASES.replace("decline}", "declin}"))
    ran, report = gates(fixtures, "fee", "--cases", str(tmp_path / "cases.yaml"))
    assert ran.returncode == 2 and report == {}
    assert "cases.yaml:6" in ran.stderr and 'did you mean "decline"' in ran.stderr and "Traceback" not in ran.stderr
    assert nothing_is_left(fixtures)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(("fees",), "no switch has the gate fees; the gates are: fee, "),
     (("fee", "--report", "/nowhere/at/all/r.json"), "--report /nowhere/at/all/r.json: No such file or directory"),
     (("fee", "--report", "/dev/null/r.json"), "--report /dev/null/r.json: Not a directory")],
    ids=["an unknown scenario", "no folder", "a file in place of a folder"],
)  # fmt: skip
def test_what_would_give_no_report_is_wrong_use_before_anything_is_replayed(
    arguments: tuple[str, ...], said: str
) -> None:
    ran = run_warm_command("gates", "run", *arguments, SENTINEL_DATABASE_URL="postgresql://nobody@127.0.0.1:1/none")
    assert ran.returncode == 2, ran.stderr
    assert said in ran.stderr and "replaying" not in ran.stderr and "Traceback" not in ran.stderr


def test_a_report_that_cannot_be_recorded_or_written_is_printed(fixtures: Fixtures, tmp_path: Path) -> None:
    (tmp_path / "cases.yaml").write_text(CASES)
    arguments = ("fee", "--cases", str(tmp_path / "cases.yaml"), "--record", "--as", "nobody@shop.example")
    ran, report = gates(fixtures, *arguments, "--report", str(tmp_path / "r.json"))
    assert ran.returncode != 0 and "nobody@shop.example" in ran.stderr
    assert report["covered"] == 3 and json.loads((tmp_path / "r.json").read_text()) == report
    if Path("/dev/full").exists():
        ran, report = gates(fixtures, "fee", "--cases", str(tmp_path / "cases.yaml"), "--report", "/dev/full")
        assert ran.returncode == 2 and report["covered"] == 3
        assert "--report /dev/full: No space left on device" in ran.stderr and "Traceback" not in ran.stderr


def test_a_login_that_may_make_no_database_gets_a_server_of_its_own(fixtures: Fixtures, tmp_path: Path) -> None:
    (tmp_path / "cases.yaml").write_text(CASES)
    url = make_login(fixtures.url, "gate_login")
    # Short, for the server's socket, and open to the account that the server runs under.
    own = Path(tempfile.mkdtemp(prefix="snt-"))
    own.chmod(0o755)
    try:
        cases = str(tmp_path / "cases.yaml")
        ran = run_warm_command(
            "gates", "run", "fee", "--cases", cases, "--json",
            program=FORKED_REPLAY, SENTINEL_DATABASE_URL=url, TMPDIR=str(own),
        )  # fmt: skip
        report = json.loads(ran.stdout)
        assert report["incorrect"] == 0 and report["covered"] == 3, ran.stderr
    finally:
        fixtures.admin.execute("drop role gate_login")
    assert list(own.iterdir()) == []
    own.rmdir()


def test_a_named_server_takes_the_scratch_database_of_a_login_that_may_make_none(
    fixtures: Fixtures, tmp_path: Path
) -> None:
    (tmp_path / "cases.yaml").write_text(CASES)
    url = make_login(fixtures.url, "gate_login")
    # Without a server of its own: there is no PostgreSQL to start.
    env = {"SENTINEL_DATABASE_URL": url, "SENTINEL_PG_BIN": str(tmp_path), "TMPDIR": str(OWN_TEMP)}
    command = ("gates", "run", "fee", "--cases", str(tmp_path / "cases.yaml"), "--json")
    OWN_TEMP.mkdir(exist_ok=True)
    try:
        ran = run_warm_command(*command, program=FORKED_REPLAY, **env, SENTINEL_SCRATCH_DATABASE_URL=fixtures.url)
        assert json.loads(ran.stdout)["covered"] == 3, ran.stderr
        refused = run_warm_command(*command, program=FORKED_REPLAY, **env, SENTINEL_SCRATCH_DATABASE_URL=url)
    finally:
        fixtures.admin.execute("drop role gate_login")
    assert (refused.returncode, refused.stderr.splitlines()[-1]) == (
        2, "Error: SENTINEL_SCRATCH_DATABASE_URL: its login must be able to create databases and roles",
    )  # fmt: skip
    assert nothing_is_left(fixtures)
