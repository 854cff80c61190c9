"""The wire contract over real HTTP: the same key again, another body under it, and a permit that starts once."""

from __future__ import annotations

import random
import uuid

from tests.acceptance.contract import problem
from tests.support.fixtures import four_keys, guard_body, start_body, unique
from tests.support.served_programs import Served


def test_the_same_key_with_any_other_field_is_422_and_changes_nothing(served: Served) -> None:
    key = unique("reuse")
    body = guard_body(key, value=10)
    first = served.guard(body)
    risk = body["params"]["risk"]
    others = {
        "agent_id": {**body, "agent_id": "other-agent"}, "action": {**body, "action": "data.read"}, "resource": {**body, "resource": "refund/x"},
        "risk_class": {**body, "risk_class": "high"}, "params.amount": guard_body(key, value="10.01"), "params.account_ref": guard_body(key, value=10, params={"account_ref": "x"}),
        "params.note": guard_body(key, value=10, params={"note": "x"}), "params.risk.stale_window": guard_body(key, value=10, params={"risk": {**risk, "stale_window": True}}),
    }  # fmt: skip
    for field, other in others.items():
        told = problem(served.post("action/guard", other), 422, "idempotency-key-reused")
        assert list(told["errors"]) == [field] and told["recorded_params"] == body["params"]
    assert served.guard(body) == first


def test_a_different_context_absent_nulls_and_another_order_are_the_same_operation(served: Served) -> None:
    body = guard_body(unique("same"))
    first = served.guard(body)
    shuffled = dict(random.Random(1).sample(list(body.items()), len(body)))
    shuffled["params"] = dict(reversed(list(body["params"].items()))) | {"note": None}
    shuffled["evidence_context"] = {"correlation_id": "other", "more": [1, 2]}
    renamed = {**body, "context": body["params"]}
    del renamed["params"]
    assert served.guard(shuffled) == served.guard(renamed) == first


def test_a_permit_starts_once_and_any_other_start_is_409(served: Served) -> None:
    body = guard_body()
    answer = served.guard(body)
    start = start_body(body, answer)
    one, again = served.post("action/guard/start", start), served.post("action/guard/start", start)
    assert (one.json["duplicate"], again.json["duplicate"]) == (False, True)
    assert {k: v for k, v in one.json.items() if k != "duplicate"} == {
        k: v for k, v in again.json.items() if k != "duplicate"
    }
    assert one.json.keys() == {"started", "start_event_id", "start_hash", "duplicate"}
    problem(served.post("action/guard/start", {**start, "start_id": str(uuid.uuid4())}), 409, "already-started")
    assert served.guard(body)["status"] == "already_started"
    assert "permit_token" not in served.guard(body)


def test_a_start_with_any_bound_field_changed_is_refused(served: Served) -> None:
    body = guard_body()
    start = start_body(body, served.guard(body))
    other = guard_body()
    foreign = start_body(other, served.guard(other))["permit_token"]
    changes = {
        "action": "refund.other",
        "agent_id": "other",
        "resource": "refund/other",
        "risk_class": "high",
        "idempotency_key": other["idempotency_key"],
        "permit_token": foreign,
    }
    for field, value in changes.items():
        assert served.post("action/guard/start", {**start, field: value}).status in (403, 409), field
    head, _, tail = start["permit_token"].partition(".")
    altered = start["permit_token"][:-2] + ("AA" if not tail.endswith("AA") else "QQ")
    for token in ("x", head, f"{head}.", f".{tail}", f"{tail}.{head}", altered, "A" * 500):
        problem(served.post("action/guard/start", {**start, "permit_token": token}), 403, "permit-refused")
    assert served.post("action/guard/start", start).status == 200


def test_reports_repeat_and_never_contradict(served: Served) -> None:
    body = guard_body()
    served.post("action/guard/start", start_body(body, served.guard(body)))
    report = {name: body[name] for name in ("idempotency_key", "action", "agent_id")} | {"outcome": "success"}
    one, again = served.post("action/guard/report", report), served.post("action/guard/report", report)
    assert (one.json["duplicate"], again.json["duplicate"]) == (False, True)
    assert one.json["receipt_event_id"] == again.json["receipt_event_id"]
    problem(served.post("action/guard/report", {**report, "outcome": "error"}), 409, "report-contradicts")
    done = served.guard(body)
    assert (done["status"], done["outcome"]) == ("completed", "success")


def test_four_keys_are_started_by_the_answer(served: Served) -> None:
    body = four_keys(guard_body())
    assert served.guard(body)["status"] == "allowed"
    assert served.guard(body)["status"] == "already_started"


def test_a_report_for_nothing_is_refused_but_never_404(served: Served) -> None:
    body = {
        "idempotency_key": unique("none"),
        "action": "refund.create",
        "agent_id": "retail-refund-agent",
        "outcome": "success",
    }
    assert served.post("action/guard/report", body).status in (403, 409)
