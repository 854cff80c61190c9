"""The hook of Claude Code as a command: whatever goes wrong before a tool blocks it, and an outcome is reported."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from sentinel.client import Client
from sentinel.integrations import ToolGuard
from sentinel.integrations.claude_agent_sdk import ClaudeHooks
from sentinel.integrations.claude_code import main
from sentinel.integrations.hook_calls import table_name
from sentinel.tools.parse import parse_tool_table
from tests.support.fake_authority import FakeAuthority
from tests.support.fake_exchange import Exchange
from tests.support.harness import at_once, on_a_loop

TABLE = """\
tools:
  - server: shop
    tool: refund
    action: refund.create
    arguments: {charge: {type: string}, amount: {type: int}, reason: {type: string, required: false}}
    facts: {clean: {type: bool, from: program}}
    key: '"refund:" + args.charge'
    params:
      amount: {minor: args.amount, currency: '"USD"'}
      risk.duplicate_refund: '!facts.clean'
      risk.stale_window: '!facts.clean'
      risk.suspicious_reason: '!facts.clean'
      risk.customer_attempts_24h: '1'
    inject: [{argument: request_key, from: operation_id}]
  - {server: claude, tool: Read, unguarded: It only reads.}
"""


@pytest.fixture
def hook(
    authority: FakeAuthority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Any:
    """Runs the command with one hook's input: (exit code, what it answered or None, what it said of errors)."""
    (tmp_path / "tools.yaml").write_text(TABLE)
    (tmp_path / "key").write_text("secret-key\n")
    (tmp_path / "facts.json").write_text('{"clean": true, "account": "acct-1"}')

    def run(given: Any, **over: str) -> tuple[int, Any, str]:
        options = {
            "url": authority.url, "key-file": str(tmp_path / "key"), "agent": "a", "tools": str(tmp_path / "tools.yaml"),
            "facts": str(tmp_path / "facts.json"), **{name.replace("_", "-"): value for name, value in over.items()},
        }  # fmt: skip
        sent = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
        # As with a locale of before UTF-8, e.g. de_DE.ISO-8859-1: the program writes UTF-8 all the same.
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(sent.encode()), encoding="latin-1"))
        words = [part for name, value in options.items() for part in (f"--{name}", value)]
        (code,) = at_once([lambda: main(words)])  # in a thread: a browser that is open in this one has a loop running
        out, err = capsys.readouterr()
        assert "secret-key" not in out + err
        return code, json.loads(out) if out else None, err

    return run


def before(amount: int = 100, tool: str = "mcp__shop__refund", **more: Any) -> dict[str, Any]:
    """A PreToolUse."""
    given = {"charge": "ch_1", "amount": amount, **more}
    return {"hook_event_name": "PreToolUse", "tool_name": tool, "tool_input": given, "tool_use_id": "toolu_1"}


def after(event: str = "PostToolUse", **more: Any) -> dict[str, Any]:
    """What follows it, with what was injected."""
    found = before(request_key="op")
    return {**found, "hook_event_name": event, **more}


def decision(answer: Any) -> str:
    """What a PreToolUse was answered."""
    return str(answer["hookSpecificOutput"]["permissionDecision"])


def test_a_permitted_tool_is_started_once_with_what_is_injected_and_reported(
    hook: Any, authority: FakeAuthority
) -> None:
    code, answer, _ = hook(before())
    operation = authority.operations["refund:ch_1"]
    assert code == 0 and decision(answer) == "allow" and operation.start_id
    assert answer["hookSpecificOutput"]["updatedInput"]["request_key"] == operation.operation_id
    assert decision(hook(before())[1]) == "deny", "the same call again may have been executed"
    assert hook(after())[0] == 0 and operation.outcome == "success"


def test_the_tool_runs_with_the_text_that_the_model_wrote_whatever_the_environments_encoding(hook: Any) -> None:
    """The finding: with what is injected the program also got "ZoÃ«" for "Zoë", and ran the tool with it."""
    changed = hook(before(reason="Zoë wants it"))[1]["hookSpecificOutput"]["updatedInput"]
    assert changed["reason"] == "Zoë wants it"


def test_an_approved_call_goes_on_although_its_facts_have_changed_but_not_when_they_are_worse(
    hook: Any, authority: FakeAuthority, tmp_path: Path
) -> None:
    counted, known = tmp_path / "counted.yaml", tmp_path / "known.json"
    counted.write_text(TABLE.replace("'1'", "facts.attempts").replace("facts: {", "facts: {attempts: {type: int, from: program}, "))  # fmt: skip

    def decided(clean: bool, attempts: int) -> tuple[str, str]:
        known.write_text(json.dumps({"clean": clean, "attempts": attempts}))
        _, answer, _ = hook(before(20_000), tools=str(counted), facts=str(known))
        return decision(answer), str(answer["hookSpecificOutput"]["permissionDecisionReason"])

    assert "approval_pending" in decided(True, 1)[1]
    authority.approve("refund:ch_1")
    worse, reason = decided(False, 1)
    assert worse == "deny" and "[risk]" in reason
    assert decided(True, 2)[0] == "allow"


def test_the_program_runs_the_tool_without_a_null_that_the_table_saw_as_absent(hook: Any) -> None:
    changed = hook(before(reason=None))[1]["hookSpecificOutput"]["updatedInput"]
    assert changed.keys() == {"charge", "amount", "request_key"}
    assert "unmapped_argument" in str(hook(before(limit=None))[1])


@pytest.mark.parametrize("said", [after("PostToolUseFailure", error="x"), after(tool_response={"is_error": True})])
def test_a_failure_is_reported_as_an_error(hook: Any, authority: FakeAuthority, said: dict[str, Any]) -> None:
    hook(before())
    assert hook(said)[0] == 0 and authority.operations["refund:ch_1"].outcome == "error"


@pytest.mark.parametrize(
    "ended",
    [{"error": "x", "is_interrupt": True}, {"error": 'MCP server "shop" tool "refund" timed out after 60s'},
     {"error": 'MCP server "shop" transport dropped mid-call; response for tool "refund" was lost'},
     {"error": "MCP error -32001: Request timed out"}, {"error": "MCP error -32000: Connection closed"},
     {"error": "Gave up. The outcome is unknown: the call may have finished, may still be running, or may never have started."}],
)  # fmt: skip
def test_a_tool_that_was_interrupted_or_not_answered_is_not_reported_as_over(
    hook: Any, authority: FakeAuthority, ended: dict[str, Any]
) -> None:
    """Nobody may say that it was not executed while its server still acts."""
    hook(before())
    assert hook(after("PostToolUseFailure", **ended))[0] == 0
    assert authority.operations["refund:ch_1"].outcome is None


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (before(500_000), "because"),
        (before(request_key="mine"), "unmapped_argument"),
        (before(tool="mcp__shop__other"), "unmapped_tool"),
        (before(tool="Bash"), "unmapped_tool"),
        (before(tool="mcp__shop"), "unmapped_tool"),
    ],
)
def test_what_is_not_permitted_is_denied_with_its_reason(hook: Any, given: dict[str, Any], reason: str) -> None:
    code, answer, _ = hook(given)
    assert code == 0 and decision(answer) == "deny"
    assert reason in answer["hookSpecificOutput"]["permissionDecisionReason"]


@pytest.mark.parametrize(("pending", "wanted"), [("deny", "deny"), ("defer", "defer")])
def test_what_waits_for_a_person_is_not_permitted_until_it_is_decided(
    hook: Any, authority: FakeAuthority, pending: str, wanted: str
) -> None:
    assert decision(hook(before(40_000), pending=pending)[1]) == wanted
    authority.approve("refund:ch_1")
    assert decision(hook(before(40_000), pending=pending)[1]) == "allow"


def test_facts_that_are_no_object_are_named(hook: Any, tmp_path: Path) -> None:
    (tmp_path / "list.json").write_text('["usd"]')
    assert hook(before(), facts=str(tmp_path / "list.json")) == (
        2,
        None,
        "sentinel: ValueError: facts must be a mapping or a function\n",
    )


def test_a_tool_that_runs_unguarded_is_left_to_the_program(hook: Any) -> None:
    assert hook(before(tool="Read")) == (0, {}, "")


@pytest.mark.parametrize(
    ("given", "over"),
    [
        ("", {}), ("{", {}), ("[]", {}), ({"hook_event_name": "Stop"}, {}), ({"hook_event_name": "PreToolUse"}, {}),
        (before(), {"key_file": "/nonexistent"}), (before(), {"tools": "/nonexistent"}), (before(), {"facts": "/nonexistent"}),
        (before(), {"url": "not an address"}), (before(), {"pending": "ask"}), (before(), {"act_within": "long"}),
    ],
)  # fmt: skip
def test_what_cannot_be_decided_does_not_run(hook: Any, given: Any, over: dict[str, str]) -> None:
    code, answer, said = hook(given, **over)
    event = given.get("hook_event_name") if isinstance(given, dict) else None
    assert code == (1 if event == "Stop" else 2) and answer is None and said


WITHOUT_A_PACKAGE = """
import sys

class Missing:
    def find_spec(self, name, *rest):
        if name.partition(".")[0] == {missing!r} or name == {missing!r}:
            raise ModuleNotFoundError("No module named " + name)

sys.meta_path.insert(0, Missing())
from sentinel.integrations.claude_code import main
sys.exit(main())
"""


@pytest.mark.parametrize("missing", ["yaml", "cel_expr_python", "sentinel.client", "sentinel.tools"])
def test_a_hook_that_cannot_be_imported_blocks(tmp_path: Path, missing: str) -> None:
    with started(tmp_path, "http://127.0.0.1:9", ["-c", WITHOUT_A_PACKAGE.format(missing=missing)]) as process:
        out, err = process.communicate(json.dumps(before()), timeout=60)
    assert (process.returncode, out) == (2, "") and "No module named" in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    "program",
    [
        ["-m", "sentinel.integrations.claude_code"],
        ["-c", "from sentinel.cli.main import main; main()", "hook", "claude-code"],
    ],
)
def test_a_hook_that_is_stopped_while_it_asks_blocks(
    authority: FakeAuthority, tmp_path: Path, number: int, program: list[str]
) -> None:
    asked = threading.Event()

    def stop(exchange: Exchange) -> bool:
        process.send_signal(number)
        process.wait(60)
        asked.set()
        return False

    with started(tmp_path, authority.url, program) as process:
        authority.misbehave = stop
        try:
            out, err = process.communicate(json.dumps(before()), timeout=60)
        finally:
            authority.misbehave = lambda exchange: False
    assert asked.wait(60) and (process.returncode, out) == (2, "") and "KeyboardInterrupt" in err


def test_a_hook_whose_answer_cannot_be_written_blocks(authority: FakeAuthority, tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full, started(tmp_path, authority.url, stdout=full) as process:
        _, err = process.communicate(json.dumps(before(500_000)), timeout=60)
    assert process.returncode == 2 and "No space" in err


def started(folder: Path, url: str, program: Any = None, stdout: Any = subprocess.PIPE) -> subprocess.Popen[str]:
    """The command as Claude Code starts it, waiting for its input."""
    (folder / "tools.yaml").write_text(TABLE)
    (folder / "key").write_text("key")
    words = ["--url", url, "--key-file", "key", "--agent", "a", "--tools", "tools.yaml"]
    return subprocess.Popen(
        [sys.executable, *(program or ["-m", "sentinel.integrations.claude_code"]), *words], cwd=folder, text=True,
        stdin=subprocess.PIPE, stdout=stdout, stderr=subprocess.PIPE,
    )  # fmt: skip


def test_a_tool_is_denied_whose_start_was_answered_too_late(
    hook: Any, authority: FakeAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sentinel.integrations.claude_agent_sdk.is_started_too_late", lambda *given: True)
    _, answer, _ = hook(before())
    assert decision(answer) == "deny" and "started_too_late" in str(answer)
    assert authority.operations["refund:ch_1"].outcome == "error"


def test_a_tool_is_started_for_as_long_as_it_may_take(
    hook: Any, authority: FakeAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged: list[Any] = []
    late = "sentinel.integrations.claude_agent_sdk.is_started_too_late"
    monkeypatch.setattr(late, lambda asked, client, act_within: judged.append(act_within))
    assert decision(hook(before(), act_within="1800")[1]) == "allow"
    with Client(authority.url, "key", agent_id="a") as client:
        guard = ToolGuard(parse_tool_table(TABLE), client, facts=lambda *call: {"clean": True}, act_within_seconds=900)
        given = {**before(), "tool_input": {"charge": "ch_2", "amount": 100}}
        assert decision(on_a_loop(ClaudeHooks(guard).pre_tool_use(given))) == "allow"
    assert decision(hook({**given, "tool_input": {"charge": "ch_3", "amount": 100}})[1]) == "allow"
    assert [authority.operations[f"refund:ch_{n}"].declared for n in (1, 2, 3)] == [[1800], [900], [None]]
    assert judged == [1800, 900, None]


BY_ACCOUNT = TABLE.replace("args.charge'", "args.charge + facts.account'").replace(
    "facts: {clean: ", "facts: {account: {type: string, from: program}, clean: "
)


@pytest.mark.parametrize("after_the_effect", [{}, {"account": "acct-2", "clean": True}])
@pytest.mark.parametrize("event", ["PostToolUse", "PostToolUseFailure"])
def test_what_was_started_is_reported_whatever_became_of_its_facts(
    authority: FakeAuthority, event: str, after_the_effect: dict[str, Any]
) -> None:
    """The finding: facts were looked up again after the effect, which had removed one, or made another operation of it: no report."""
    authority.operations.clear()
    known: dict[str, Any] = {"account": "acct-1", "clean": True}
    with Client(authority.url, "key", agent_id="a") as client:
        hooks = ClaudeHooks(ToolGuard(parse_tool_table(BY_ACCOUNT), client, facts=lambda *call: known))
        assert decision(on_a_loop(hooks.pre_tool_use(before(), "toolu_1"))) == "allow"
        known = after_the_effect
        assert on_a_loop(hooks.post_tool_use(after(event), "toolu_1")) == {}
    outcomes = {key: operation.outcome for key, operation in authority.operations.items()}
    assert outcomes == {"refund:ch_1acct-1": "success" if event == "PostToolUse" else "error"}


def test_of_calls_that_never_end_the_oldest_are_forgotten(
    authority: FakeAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority.operations.clear()
    monkeypatch.setattr("sentinel.integrations.claude_agent_sdk._MOST_STARTED", 2)
    with Client(authority.url, "key", agent_id="a") as client:
        hooks = ClaudeHooks(ToolGuard(parse_tool_table(TABLE), client, facts={"clean": True}))
        given = [{**before(), "tool_input": {"charge": f"ch_{n}", "amount": 100}} for n in range(3)]
        for number, one in enumerate(given):
            assert decision(on_a_loop(hooks.pre_tool_use(one, f"toolu_{number}"))) == "allow"
        assert list(hooks._started) == ["toolu_1", "toolu_2"]
        for number, one in enumerate(given):
            on_a_loop(hooks.post_tool_use({**one, "hook_event_name": "PostToolUse"}, f"toolu_{number}"))
        assert hooks._started == {}
    assert [operation.outcome for operation in authority.operations.values()] == ["success"] * 3


def test_a_guard_that_waits_for_people_is_none_for_hooks() -> None:
    with Client("http://127.0.0.1:9", "key", agent_id="a") as client:
        with pytest.raises(ValueError, match="wait_seconds"):
            ClaudeHooks(ToolGuard(parse_tool_table(TABLE), client, wait_seconds=60))


def test_a_lost_authority_denies_before_and_only_says_so_after(hook: Any) -> None:
    code, answer, _ = hook(before(), url="http://127.0.0.1:9")
    assert code == 0 and decision(answer) == "deny"
    code, answer, _ = hook(after(), url="http://127.0.0.1:9")
    assert code == 0 and "was not reported" in answer["systemMessage"]


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("mcp__stripe__create_refund", ("stripe", "create_refund")), ("mcp__a__b__c", ("a", "b__c")), ("Bash", ("claude", "Bash")),
     ("mcp__x", ("claude", "mcp__x")), ("mcpx__a__b", ("claude", "mcpx__a__b"))],
)  # fmt: skip
def test_a_tools_name_is_its_server_and_name_in_the_table(name: str, wanted: tuple[str, str]) -> None:
    assert table_name(name) == wanted


def test_the_command_starts_without_an_event_loop_and_without_what_only_servers_need(tmp_path: Path) -> None:
    (tmp_path / "tools.yaml").write_text(TABLE)
    (tmp_path / "key").write_text("key")
    words = ["hook", "claude-code", "--key-file", "key", "--agent", "a", "--tools", "tools.yaml"]
    program = (
        "import atexit, json, sys; atexit.register(lambda: json.dump(sorted(sys.modules), sys.stderr));"
        f"sys.argv[1:] = {words!r}; from sentinel.cli.main import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], input=json.dumps(before(tool="Bash")), cwd=tmp_path, capture_output=True,
        text=True, timeout=60, check=False,
    )  # fmt: skip
    assert decision(json.loads(done.stdout)) == "deny"
    loaded = {name.partition(".")[0] for name in json.loads(done.stderr)}
    assert not loaded & {"asyncio", "ssl", "psycopg", "flask", "marshmallow", "sqlalchemy", "ops_console"}
