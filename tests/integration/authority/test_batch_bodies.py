"""A batch's body is read as that of a single request is: every spelling that a request may have, and each refusal in its place."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.fixtures import Fixtures, guard_body

SPELLINGS = {"fraction": "1.5", "a zero after it": "1.50", "integer": "1", "text": '"1.5"', "escape": '"1\\u002e5"'}
"""Of an amount. msgspec's one pass over a body does not take them all, the strict reader does."""
NO_BATCHES = {
    "no requests": ("{}", "requests"), "none": ('{"requests": []}', "requests"), "not a list": ('{"requests": {}}', "requests"),
    "a list alone": ("[]", "body"), "more": ('{"requests": [{}], "mode": "fast"}', "mode"),
    "too many": (json.dumps({"requests": [{}] * 65}), "requests"),
}  # fmt: skip


def _post(fixtures: Fixtures, route: str, body: str) -> Any:
    headers = {"X-API-Key": fixtures.key, "Content-Type": "application/json"}
    return fixtures.client.post(f"/api/sentinel/action/{route}", data=body, headers=headers)


def _spelled(spelling: str, route: str = "guard") -> str:
    body = guard_body(value=77777)
    if route == "check":
        del body["idempotency_key"]
    written = json.dumps(body)
    assert written.count("77777") == 1
    return written.replace("77777", spelling)


@pytest.mark.parametrize("route", ["guard", "check"])
@pytest.mark.parametrize("spelling", SPELLINGS.values(), ids=SPELLINGS)
def test_an_amount_is_spelled_as_in_a_single_request(fixtures: Fixtures, route: str, spelling: str) -> None:
    alone = _post(fixtures, route, _spelled(spelling, route))
    answer = _post(fixtures, f"{route}/batch", f'{{"requests": [{_spelled("1", route)}, {_spelled(spelling, route)}]}}')
    assert (alone.status_code, answer.status_code) == (200, 200), answer.text
    decisions = [(one["status"], one["body"]["decision"]) for one in answer.get_json()["answers"]]
    assert decisions == [(200, "ALLOW"), (200, alone.get_json()["decision"])]


def test_a_row_that_breaks_a_rule_is_refused_alone_in_its_place(fixtures: Fixtures) -> None:
    good, amount = _spelled("1"), _spelled('"1e3"')
    answers = _post(fixtures, "guard/batch", f'{{"requests": [{good}, {amount}, {{}}, {_spelled("2.5")}]}}').get_json()[
        "answers"
    ]
    assert [one["status"] for one in answers] == [200, 400, 400, 200]
    assert "params.amount.value" in answers[1]["body"]["errors"]
    assert "action" in answers[2]["body"]["errors"]


@pytest.mark.parametrize("route", ["guard", "guard/start", "guard/report", "check"])
@pytest.mark.parametrize(("body", "named"), NO_BATCHES.values(), ids=NO_BATCHES)
def test_what_is_no_batch_is_refused_by_the_name_of_what_is_wrong(
    fixtures: Fixtures, route: str, body: str, named: str
) -> None:
    answer = _post(fixtures, f"{route}/batch", body)
    assert answer.status_code == 400
    assert list(answer.get_json()["errors"]) == [named], answer.text
    assert "Content-Length" not in answer.text


def test_the_document_says_what_a_batch_and_its_answers_consist_of(fixtures: Fixtures) -> None:
    document = fixtures.client.get("/openapi.json").get_json()

    def schema(name: str) -> dict[str, str]:
        return {"$ref": f"#/components/schemas/{name}"}

    for route, asked, answered in (
        ("guard", "GuardRequest", "GuardAnswer"), ("guard/start", "StartRequest", "StartReceipt"),
        ("guard/report", "ReportRequest", "ReportReceipt"), ("check", "CheckRequest", "CheckAnswer"),
    ):  # fmt: skip
        told = document["paths"][f"/api/sentinel/action/{route}/batch"]["post"]
        sent = told["requestBody"]["content"]["application/json"]["schema"]
        assert sent["properties"]["requests"] == {
            "type": "array",
            "minItems": 1,
            "maxItems": 64,
            "items": schema(asked),
        }
        found = told["responses"]["200"]["content"]["application/json"]["schema"]
        one = found["properties"]["answers"]["items"]
        assert one["required"] == ["status", "body"]
        assert one["properties"]["body"] == {"oneOf": [schema(answered), schema("Problem")]}
