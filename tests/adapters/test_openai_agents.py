"""OpenAI Agents SDK: only what is protected is answered by the authority, and what a tool does itself is told as its own."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from tests.support.adapter_environments import NotInstalled, environment_variables, interpreter_of
from tests.support.fake_authority import FakeAuthority

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cases() -> dict[str, Any]:
    """What each run of `openai_agents_cases` came to."""
    try:
        python = interpreter_of("openai_agents")
    except NotInstalled as error:
        pytest.skip(str(error))
    with FakeAuthority().running() as authority:
        done = subprocess.run(
            [str(python), "-m", "tests.adapters.openai_agents_cases", authority.url], capture_output=True, text=True,
            timeout=300, check=False, env=environment_variables(),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        outcomes = {key: operation.outcome for key, operation in authority.operations.items()}
    return {**json.loads(done.stdout), "outcomes": outcomes}


@pytest.mark.parametrize(
    ("case", "asked"),
    [("own_question", "delete"), ("own_question_kept", "delete"), ("question_of_an_inner_agent", "delete")],
)
def test_a_tool_that_is_not_protected_is_not_approved_with_those_that_are(
    cases: dict[str, Any], case: str, asked: str
) -> None:
    assert cases[case] == {"waiting": [asked], "called": [], "told": []}


@pytest.mark.parametrize("kind", ["always", "sometimes"])
def test_a_tool_with_a_question_of_its_own_is_not_protected_without_it(cases: dict[str, Any], kind: str) -> None:
    assert "needs_approval of its own" in cases["refused"][kind]


def test_a_tool_is_not_protected_twice_and_an_agent_is_no_tool_to_protect(cases: dict[str, Any]) -> None:
    assert cases["refused"]["twice"] and "protect each agent" in cases["refused"]["agent"]


def test_an_error_of_the_tool_itself_is_not_told_as_a_call_that_was_not_made(cases: dict[str, Any]) -> None:
    found = cases["own_error"]
    assert found["called"] == [["pay", "o2", 50]] and cases["outcomes"]["pay:o2"] == "error"
    assert "Not executed" not in str(found["told"]) and "An error occurred while running the tool" in str(found["told"])


def test_an_interruption_stays_one_while_the_authority_cannot_be_asked(cases: dict[str, Any]) -> None:
    found = cases["silent_authority"]
    assert found == {"raised": "connection_refused", "waiting": ["pay"], "called": [], "approvals": 1}


def test_a_call_that_could_not_be_asked_about_is_made_again_and_waits_by_an_interruption(cases: dict[str, Any]) -> None:
    found = cases["silent_question"]
    assert (found["waiting"], found["called"]) == (["pay"], [])
    assert len(found["told"]) == 1 and "authority_unreachable" in found["told"][0]
    assert "made again later" in found["told"][0], "not that a person decides: no interruption is left for it"


def test_what_the_sdk_would_not_call_is_not_started(cases: dict[str, Any]) -> None:
    """The finding: the SDK refused the arguments behind the start, before the function: in doubt, and the corrected call was refused."""
    found = cases["unfit"]
    wrong = [
        "the argument note: Field required",
        "the argument note: Input should be 'gift'",
        "the argument copies: Input should be greater",
    ]
    assert len(found["told"]) == 8
    for number, told in enumerate(found["told"]):
        if number % 4 == 3:
            assert told == "done", "the key is free"
        else:
            assert wrong[number % 4] in told and "[malformed_argument]" in told
    assert found["called"] == [["o7", 2, "gift", 36], ["o8", 2, "gift", 36]]
    assert (cases["outcomes"]["pay:o7"], cases["outcomes"]["pay:o8"]) == ("success", "success")


@pytest.mark.parametrize("declared", ["output_type", "output_json_schema"])
def test_a_refusal_of_a_tool_with_a_typed_output_is_told_and_the_run_goes_on(
    cases: dict[str, Any], declared: str
) -> None:
    """The finding: the SDK held the refusal to the tool's type, and ended the run with what else it had begun."""
    told = cases["typed_output"][declared]
    assert len(told) == 3, told
    assert "[unmapped_tool]" in told[0] and "[malformed_argument]" in told[1]
    assert "number" in told[2]


def test_a_null_of_the_models_reaches_no_tool(cases: dict[str, Any]) -> None:
    found = cases["nulls"]
    assert found["called"] == [["pay", "o3", 50]], "as if it had been left out, which is what was asked about"
    assert found["told"][0] == "done" and "unmapped_argument" in found["told"][1]
