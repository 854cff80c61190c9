"""The examples of docs/examples run as they stand, each with its framework's own environment."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from sentinel.policy.cases import NOW
from sentinel.policy.folder import check_folder
from sentinel.tools import read_tool_table
from sentinel.tools.cases import policy_decision
from tests.adapters.conftest import ADAPTERS, Place
from tests.adapters.scripted_messages import scripted_messages
from tests.support.adapter_environments import REPO, NotInstalled, environment_variables, interpreter_of
from tests.support.warm_process import WarmProcess

EXAMPLES = {
    "plain": "plain", "langchain_agent": "langchain", "openai_agent": "openai_agents", "pydantic_ai_agent": "pydantic_ai",
    "claude_agent": "claude_agent_sdk", "mcp_agent": "mcp_proxy", "mcp_access_tokens": "mcp_proxy",
}  # fmt: skip
"""Example → the adapter that it shows."""
pytestmark = pytest.mark.slow


def examples(*names: str) -> pytest.MarkDecorator:
    """Each of these, beside the tests of its adapter: it begins with what that one's driver has imported."""
    return pytest.mark.parametrize(
        "name", [pytest.param(name, marks=pytest.mark.xdist_group(f"adapter-{EXAMPLES[name]}")) for name in names]
    )


def test_every_example_is_run() -> None:
    assert {path.stem for path in (REPO / "docs" / "examples").glob("*.py")} == EXAMPLES.keys()


@examples(*(name for name in EXAMPLES if name != "claude_agent"))
def test_an_example_issues_the_small_card_waits_for_a_person_is_refused_the_huge_one_and_issues_nothing_twice(
    place: Place, tmp_path: Path, name: str
) -> None:
    text = printed(name, place, tmp_path)
    assert "issued 10.00 USD" in text and "issued 100.00 USD" in text and "issued 1000.00" not in text
    assert "Not executed" in text and "over_limit" in text and text.count("waiting for") == 1
    again = printed(name, place, tmp_path)
    assert "issued" not in again and again.count("already_started") == 2 and "over_limit" in again


@examples("langchain_agent", "openai_agent", "pydantic_ai_agent")
def test_an_example_whose_calls_wait_for_two_people_at_once_issues_both(
    place: Place, tmp_path: Path, name: str
) -> None:
    examples = tmp_path / "docs" / "examples"
    examples.mkdir(parents=True)
    script = examples / f"{name}.py"
    script.write_text(script_of(name).read_text().replace('"10.00"', '"90.00"').replace('"c1"', '"c2"'))
    (tmp_path / "policies").symlink_to(REPO / "policies")
    text = printed(name, place, tmp_path, script)
    assert text.count("waiting for") == 2
    assert all(text.count(f"issued {amount} USD") == 1 for amount in ("90.00", "100.00")), text


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_without_arguments_says_what_it_wants(name: str) -> None:
    command = [python_of(name), str(script_of(name))]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=120, env=environment_variables()
    )
    assert done.returncode == 1 and f"python docs/examples/{name}.py http://127.0.0.1:7860 KEY" in done.stderr, (
        done.stderr
    )
    assert "Traceback" not in done.stderr


def printed(name: str, place: Place, folder: Path, script: Path | None = None) -> str:
    """What the example prints, or a changed one in `script`; whom it waits for approves. Its errors are in the folder's `errors`."""
    command = [python_of(name), str(script or script_of(name)), place.url, place.fixtures.key]
    imported = (f"tests.adapters.drive_{EXAMPLES[name]}",)
    with (folder / "errors").open("w") as errors, WarmProcess(
        command, imported=imported, env=environment_variables(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True
    ) as process:  # fmt: skip
        lines = answered(process, place)
    assert process.returncode == 0, (folder / "errors").read_text()
    return "\n".join(lines)


def answered(process: subprocess.Popen[str], place: Place) -> list[str]:
    """The lines that a process prints until it ends; what it waits for is approved."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line.strip())
        if line.startswith("waiting for "):
            place.vote(line.split()[-1])
    process.wait(60)
    return lines


def test_the_claude_example_issues_a_card_and_waits_for_a_person(place: Place, tmp_path: Path) -> None:
    card = {"customer": "c1", "amount": "100.00", "currency": "USD", "order": "claude-1"}
    calls = [{"name": "mcp__local__issue_gift_card", "input": card, "id": "toolu_1"}]
    with scripted_messages(calls) as (service, _):
        env = {
            "ANTHROPIC_BASE_URL": service, "ANTHROPIC_API_KEY": "none", "HOME": str(tmp_path), "CLAUDE_CONFIG_DIR": str(tmp_path),
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1",
        }  # fmt: skip
        command = [
            python_of("claude_agent"),
            str(script_of("claude_agent")),
            place.url,
            place.fixtures.key,
            "Thank customer c1",
        ]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env={**environment_variables(), **env}
        ) as process:
            lines = answered(process, place)
        assert process.returncode == 0
    assert lines[-1] == "issued 100.00 USD to c1" and lines[0].startswith("waiting for ")


def test_the_readmes_snippet_runs_as_it_stands(place: Place, tmp_path: Path) -> None:
    (snippet,) = (
        text
        for text in re.findall(r"```python\n(.*?)```", (REPO / "README.md").read_text(), re.DOTALL)
        if "guarded(" in text
    )
    (tmp_path / "agent.py").write_text(snippet.replace("http://127.0.0.1:7860", place.url))
    command = [sys.executable, str(tmp_path / "agent.py"), place.fixtures.key]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment_variables()) as process:
        lines = answered(process, place)
    assert process.returncode == 0
    assert lines[0].startswith("waiting for ") and lines[1:] == ["issued"]


def test_the_policy_of_ones_own_is_a_good_one(tmp_path: Path) -> None:
    text = (REPO / "docs" / "agents.md").read_text()
    (policy,) = re.findall(r"```yaml\n(policy: .*?)```", text, re.DOTALL)
    (tmp_path / "own.yaml").write_text(policy)
    library, wrong = check_folder(tmp_path)
    assert library is not None and wrong == []
    table = read_tool_table(REPO / "policies" / "tools.yaml")
    for amount, wanted in (("25.00", "ALLOW"), ("25.01", "APPROVAL_REQUIRED")):
        call = table.call(
            "local", "issue_gift_card", {"customer": "c", "amount": amount, "currency": "USD", "order": "o"}
        )
        assert policy_decision(call, library, NOW).verdict == wanted


def python_of(name: str) -> str:
    """The interpreter that the example runs under. Skips where its framework cannot be installed."""
    framework = ADAPTERS[EXAMPLES[name]]
    try:
        return sys.executable if framework is None else str(interpreter_of(framework))
    except NotInstalled as error:
        pytest.skip(str(error))


def script_of(name: str) -> Path:
    """The example's file."""
    return REPO / "docs" / "examples" / f"{name}.py"
