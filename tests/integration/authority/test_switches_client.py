"""The client's two questions about switches, asked of a real authority and of answers that are none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sentinel.cli.scratch import listening
from sentinel.client import Client, HaltInForce, NoAnswerKind, Rejected, Switches, SwitchState, Unreachable
from sentinel.client.answers import switched_off, switches_answer
from tests.support.fixtures import Fixtures


@pytest.fixture
def client(fixtures: Fixtures) -> Iterator[Client]:
    """A client of this fixtures' authority, over a loopback socket."""
    with listening(fixtures.app) as url, Client(url, fixtures.key, agent_id="a") as made:
        yield made


def test_a_client_sees_a_flip_and_a_halt_with_its_next_question(fixtures: Fixtures, client: Client) -> None:
    before = client.switches()
    assert before.is_on("retail.standard") and not before.is_on("small_refund.enabled") and not before.is_on("nothing")
    assert before.switches["retail.standard"] == SwitchState(True, 100) and before.halts == ()
    assert before.policies.keys() >= {"retail-refund", "small-refund"}
    assert client.switch_off("retail.standard", "a wrong execution") is True
    assert client.switch_off("retail.standard", "a wrong execution") is False
    fixtures.admin.execute(
        "select sentinel.set_halt(%s, gen_random_uuid(), 'action', 'refund.*', 'pause', 'x', 'x', gen_random_uuid())",
        [fixtures.tenant_id],
    )
    after = client.switches()
    assert not after.is_on("retail.standard")
    assert after.halts == (HaltInForce("action", "refund.*", "pause"),)


def test_a_refusal_and_silence_are_told_apart(fixtures: Fixtures, client: Client) -> None:
    with pytest.raises(Rejected) as refused:
        client.switch_off("retail.standart", "x")
    assert (refused.value.status, refused.value.code) == (400, "invalid-request")
    with (
        Client("http://127.0.0.1:9", fixtures.key, timeout_seconds=0.3, retries=0) as nobody,
        pytest.raises(Unreachable),
    ):
        nobody.switches()


EMPTY: dict[str, Any] = {"switches": {}, "halts": [], "policies": {}}


@pytest.mark.parametrize(
    "over",
    [
        {"switches": None}, {"switches": []}, {"switches": {"a.b": True}}, {"switches": {"a.b": {"canary_percent": 5}}},
        {"switches": {"a.b": {"on": 1, "canary_percent": 5}}}, {"switches": {"a.b": {"on": True, "canary_percent": 101}}},
        {"switches": {"a.b": {"on": True, "canary_percent": True}}}, {"switches": {"a.b": {"on": True}}}, {"halts": None},
        {"halts": ["global"]}, {"halts": [{"scope": "planet", "target": "", "level": "kill"}]},
        {"halts": [{"scope": "global", "target": None, "level": "kill"}]}, {"halts": [{"scope": "global", "target": ""}]},
        {"policies": None}, {"policies": {"p": 7}},
    ],
)  # fmt: skip
def test_half_an_answer_about_switches_is_none(over: dict[str, Any]) -> None:
    assert switches_answer(EMPTY) == Switches({}, (), {})
    with pytest.raises(Unreachable) as refused:
        switches_answer({**EMPTY, **over})
    assert refused.value.kind == NoAnswerKind.MALFORMED


@pytest.mark.parametrize("body", [{}, {"switch": "a.b", "on": True}, {"switch": "a.c", "on": False}, {"switch": "a.b"}])
def test_only_off_is_an_answer_to_turning_off(body: dict[str, Any]) -> None:
    with pytest.raises(Unreachable):
        switched_off(body, "a.b")
