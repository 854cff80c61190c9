"""What the documents of the clients show runs as it stands, and names every error that there is."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import sentinel.client
import sentinel.integrations
import sentinel.tools
from sentinel.cli.scratch import listening
from sentinel.client import Client, ClientError
from sentinel.tools import ToolRefused
from tests.support.adapter_environments import REPO, environment_variables
from tests.support.fixtures import Fixtures, make_fixtures

AGENTS = (REPO / "docs" / "agents.md").read_text()


def snippets(text: str, language: str) -> list[str]:
    """The blocks of that language."""
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


@pytest.mark.parametrize("page", ["docs/agents.md", "deploy/sentinel-client/README.md"])
def test_the_first_snippet_of_the_python_client_runs(fixtures: Fixtures, page: str) -> None:
    program = snippets((REPO / page).read_text(), "python")[0]
    with listening(fixtures.app) as url:
        own = f"KEY = {fixtures.key!r}\n" + program.replace("http://127.0.0.1:7860", url).replace('"…"', "KEY")
        done, again = (
            subprocess.run(
                [sys.executable, "-c", own, fixtures.key], capture_output=True, text=True, timeout=60, env=environment_variables(),
                check=False,
            ) for _ in range(2)
        )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    if page == "docs/agents.md":
        assert (again.returncode, again.stdout, again.stderr) == (0, "issued before: not again\n", "")
    assert fixtures.one("select outcome from sentinel.operation_states where status = 'completed'") == "success"


def test_whoever_runs_one_snippet_after_the_other_is_not_refused() -> None:
    """Each has a key of its own: under a used one another amount is refused."""
    pages = [(REPO / page).read_text() for page in ("README.md", "docs/agents.md")]
    keys = [key for page in pages for key in re.findall(r'(?:idempotency_key=|idempotencyKey: )"(.*?)"', page)]
    assert len(keys) == len(set(keys)) == 3


def test_the_guarded_tool_that_the_page_shows_asks_before_it_runs(fixtures: Fixtures) -> None:
    (program,) = (one for one in snippets(AGENTS, "python") if "@guarded_tool" in one)
    with listening(fixtures.app) as url, Client(url, fixtures.key, agent_id="my-agent") as client:
        names = {
            "ToolGuard": sentinel.integrations.ToolGuard, "guarded_tool": sentinel.integrations.guarded_tool, "client": client,
            "read_tool_table": sentinel.tools.read_tool_table, "look_up": lambda tool, arguments: {}, "Path": REPO.__truediv__,
        }  # fmt: skip
        exec(program, names)
        names["issue_gift_card"](customer="c1", amount="10.00", currency="USD", order="o1")
    assert fixtures.one("select outcome from sentinel.operation_states where status = 'completed'") == "success"


def test_the_page_names_every_error_and_no_other() -> None:
    named = set(re.findall(r"^\| `(\w+)`", AGENTS.partition("| Exception |")[2].partition("\n\n")[0], re.MULTILINE))
    found = {name for name in sentinel.client.__all__ if is_error(getattr(sentinel.client, name))}
    assert named == found - {"ClientError"} | {ToolRefused.__name__}


def is_error(found: object) -> bool:
    """Whether it is an error of the client."""
    return isinstance(found, type) and issubclass(found, ClientError)


def test_a_policy_of_ones_own_has_ten_lines_and_decides(database_url: str, tmp_path: Path) -> None:
    (policy,) = (one for one in snippets(AGENTS, "yaml") if one.startswith("policy:"))
    assert len(policy.splitlines()) == 10
    (tmp_path / "my_gifts.yaml").write_text(policy)
    fixtures = make_fixtures(database_url, policies=tmp_path)
    try:
        with listening(fixtures.app) as url, Client(url, fixtures.key, agent_id="my-agent") as client:
            for cents, wanted in ((2500, "allowed"), (2501, "pending")):
                params = {"amount": {"value": f"{cents / 100:.2f}", "currency": "USD"}}
                answer = client.guard(action="gift_card.issue", params=params, idempotency_key=f"gift:{cents}")
                assert answer.status == wanted
    finally:
        fixtures.close()
