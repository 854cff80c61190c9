"""What a key may bring is bounded in bytes as in requests: what it brings is kept for good, also of what is denied."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from sentinel.authority.app import create_app
from sentinel.authority.settings import Settings
from sentinel.platform.http.rate_limit import SharedRateLimit
from tests.support.asgi_client import InProcessApp
from tests.support.fixtures import Fixtures, guard_body

BURST = 30


@pytest.fixture
def slow(fixtures: Fixtures) -> Iterator[Fixtures]:
    """An authority that takes BURST requests of a key and then no more."""
    fixtures.app.close()
    limit = SharedRateLimit(per_second=1, burst=BURST, clock=lambda: 1000.0)
    with closing(InProcessApp(create_app(Settings(), fixtures.authority, limit))) as fixtures.app:
        yield fixtures


def large(number: int) -> dict[str, Any]:
    """A question with 60 KB of parameters, which no policy allows."""
    return guard_body(action="never.covered", params={"texts": ["x" * 6_000] * 10, "number": number})


def test_a_request_counts_as_one_more_for_each_four_kib_that_it_brings(slow: Fixtures) -> None:
    assert [slow.post("action/guard", large(number)).status_code for number in range(4)] == [200, 200, 429, 429]


@pytest.mark.parametrize("is_batch", [False, True])
def test_a_conflict_with_a_large_question_counts_the_bytes_of_that_question_too(slow: Fixtures, is_batch: bool) -> None:
    """The finding: the recorded question is decided and told again, 16 times what a small request under its key counts as."""
    first = large(1)
    small = {**first, "params": {"number": 2}}
    assert slow.post("action/guard", first).status_code == 200
    if is_batch:
        answers = slow.post("action/guard/batch", {"requests": [small]}).get_json()["answers"]
        found = [(one["status"], one["body"]["recorded_params"]) for one in answers]
    else:
        answer = slow.post("action/guard", small)
        found = [(answer.status_code, answer.get_json()["recorded_params"])]
    assert found == [(422, first["params"])]
    assert slow.post("action/guard", small).status_code == 429


@pytest.mark.parametrize("length", ["99999999999999999999", "x", "٣٣٣٣٣", "-5000", "100000"])
def test_a_length_that_is_refused_costs_no_more_than_the_longest_body(slow: Fixtures, length: str) -> None:
    headers = {"X-API-Key": slow.key, "Content-Type": "application/json", "Content-Length": length}
    client = slow.app.test_client()
    assert client.post("/api/sentinel/action/guard", headers=headers).status_code in (400, 411, 413)
    assert slow.post("action/guard", guard_body()).status_code == 200


def test_a_large_batch_that_is_let_in_is_answered_and_counted_whole(slow: Fixtures) -> None:
    """However little may come at once: its bytes alone may be more than that."""
    bodies = [guard_body(params={"text": "x" * 2_000}) for _ in range(20)]
    assert [slow.post("action/guard", guard_body()).status_code for _ in range(BURST - 1)] == [200] * (BURST - 1)
    assert slow.post("action/guard/batch", {"requests": bodies}).status_code == 200
    assert slow.post("action/guard", guard_body()).status_code == 429


def test_small_requests_and_those_of_a_batch_count_as_one_each(slow: Fixtures) -> None:
    bodies = [guard_body() for _ in range(BURST - 1)]
    assert slow.post("action/guard/batch", {"requests": bodies}).status_code == 200
    assert [slow.post("action/guard", guard_body()).status_code for _ in range(2)] == [200, 429]


def test_what_evaluations_share_counts_for_each_of_them(slow: Fixtures) -> None:
    """It is kept with each: 60 KB that are sent once would else be kept 64 times at the price of one."""
    shared = {
        "subject": {"type": "agent", "id": "retail-refund-agent"}, "resource": {"type": "text", "id": "text/1"},
        "action": {"name": "never.covered", "properties": {"texts": ["x" * 6_000] * 10}},
    }  # fmt: skip
    several = [{"context": {"idempotency_key": f"text:{number}"}} for number in range(3)]
    client, headers = slow.app.test_client(), {"X-API-Key": slow.key}
    found = client.post("/access/v1/evaluations", json={**shared, "evaluations": several}, headers=headers)
    assert [one["context"]["status"] for one in found.json["evaluations"]] == ["denied"] * 3
    assert slow.one("select count(*) from sentinel.operations where length(request) > 60000") == 3
    assert slow.post("action/guard", guard_body()).status_code == 429
