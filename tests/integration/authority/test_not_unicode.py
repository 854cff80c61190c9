"""JSON can write half a surrogate pair, which nothing could store or answer: a 400 that names the place, on every route."""

from __future__ import annotations

import itertools

import pytest

from tests.support.fixtures import Fixtures

HALVES = [rb"\ud800", rb"\uDFFF", rb"x\udbff!", rb"\udc00\ud800"]
PLACES = [
    b'{"%s":1}',
    b'{"%s":1,"%s":2}',
    b'{"agent_id":"%s"}',
    b'{"params":{"note":"%s"}}',
    b'{"requests":[{"a":["%s"]}]}',
]
ROUTES = [
    "action/guard", "action/guard/batch", "action/guard/start", "action/guard/start/batch", "action/guard/report",
    "action/guard/report/batch", "action/check", "action/check/batch", "action/report",
]  # fmt: skip


@pytest.mark.parametrize("route", ROUTES)
def test_half_a_pair_is_a_400_that_names_the_place(fixtures: Fixtures, route: str) -> None:
    for half, place in itertools.product(HALVES, PLACES):
        body = place.replace(b"%s", half)
        answer = fixtures.client.post(
            f"/api/sentinel/{route}", data=body, headers={"X-API-Key": fixtures.key, "Content-Type": "application/json"}
        )
        told = answer.get_json()
        if route == "action/guard/report/batch" and b"requests" in body:
            # Half a character in one report is no reason to refuse its neighbours.
            assert (answer.status_code, told["answers"][0]["status"]) == (200, 400), (body, answer.text)
            continue
        assert (answer.status_code, answer.mimetype) == (400, "application/problem+json"), (body, answer.text)
        assert told["errors"], body
    print(f"N={len(HALVES) * len(PLACES)}")


def test_a_whole_pair_is_a_character(fixtures: Fixtures) -> None:
    answer = fixtures.client.post(
        "/api/sentinel/action/guard", data=rb'{"agent_id":"\ud83d\ude00"}',
        headers={"X-API-Key": fixtures.key, "Content-Type": "application/json"},
    )  # fmt: skip
    assert "surrogate" not in answer.text
