"""What holds for all routes of the console: documented as they run, strict about what arrives, never a 5xx for nonsense."""

from __future__ import annotations

from dataclasses import fields
from typing import Any
from unittest.mock import MagicMock

import pytest

from ops_console.accounts.operator_tokens import TokenListing
from ops_console.api.case_schemas import (
    AlertViewSchema,
    AnalystDecisionSchema,
    EarlierVoteSchema,
    LaneEventSchema,
    LedgerEntrySchema,
    OrderViewSchema,
    QueueFiguresSchema,
    ShopEffectSchema,
    VoteViewSchema,
)
from ops_console.api.control_schemas import (
    DeadLetterViewSchema,
    EndpointViewSchema,
    GateViewSchema,
    HaltViewSchema,
    InDoubtViewSchema,
    PublicPackSchema,
    SwitchViewSchema,
    TokenViewSchema,
)
from ops_console.api.halts import halt_view, in_doubt_view
from ops_console.api.orders import order_view
from ops_console.api.refunds import entry_view
from ops_console.api.switches import gate_view, switch_view
from ops_console.api.webhooks import dead_letter_view, endpoint_view
from ops_console.audience import Audience
from ops_console.read_models.order_views import (
    AlertRow,
    AnalystDecisionRow,
    EffectRow,
    LaneEventRow,
    OrderRow,
    QueueFigures,
)
from ops_console.read_models.refund_views import LedgerEntryRow
from ops_console.settings import load_console_settings
from sentinel.authority.approvals import EarlierVote, Vote
from sentinel.authority.gate_reports import GateState
from sentinel.authority.halts import HaltRow
from sentinel.authority.in_doubt import InDoubtRow
from sentinel.authority.switches import SwitchView
from sentinel.authority.webhooks import DeadLetter, EventEndpoint
from sentinel.core.publication import PACK_FIELDS
from sentinel.platform.settings import UnsafeConfiguration
from tests.support.docs_page import require_docs_page
from tests.support.undocumented import undocumented_routes

ID = "01a20050-35be-7df6-b26d-7b9b84e55383"


def test_every_route_is_documented_and_the_document_is_valid_openapi(fixtures: Any) -> None:
    app = fixtures.app()
    assert undocumented_routes(app.flask, pages="pages") == []
    document = app.test_client().get("/openapi.json").json
    # Loading it takes two seconds, which every process would spend that only collects this file.
    from openapi_spec_validator import validate

    validate(document)
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            protected = (
                path.startswith("/ops/")
                and not path.startswith("/ops/api/live/")
                and (path, method) != ("/ops/api/session", "post")
            )
            assert bool(operation["security"]) == protected, f"{method} {path}"
            assert ("401" in operation["responses"]) == (
                path.startswith("/ops/") and not path.startswith("/ops/api/live/")
            )


def row_with_everything(kind: Any, **known: Any) -> Any:
    """A row whose every other column is some text, so that its view leaves nothing out."""
    return kind(**{one.name: "x" for one in fields(kind)} | known)


def test_the_document_has_every_member_of_an_order_and_of_a_ledger_row() -> None:
    # An order of nothing: whether a policy would deny its refund is not asked.
    order = row_with_everything(OrderRow, amount_minor=0, currency="USD")
    assert order_view(order, MagicMock()).keys() <= OrderViewSchema().fields.keys()
    entry = row_with_everything(LedgerEntryRow, amount_minor=1, currency="USD", risk={"stale_window": False})
    assert entry_view(entry).keys() == LedgerEntrySchema().fields.keys()


SHOWN_AS_THEY_ARE: dict[Any, Any] = {
    AlertRow: AlertViewSchema, AnalystDecisionRow: AnalystDecisionSchema, EarlierVote: EarlierVoteSchema, EffectRow: ShopEffectSchema,
    LaneEventRow: LaneEventSchema, QueueFigures: QueueFiguresSchema, TokenListing: TokenViewSchema, Vote: VoteViewSchema,
}  # fmt: skip
"""Rows whose every column is a member of an answer."""


def test_the_document_has_every_member_of_what_other_routes_list() -> None:
    state = row_with_everything(GateState, refusal="no_report")
    shown: list[tuple[Any, Any]] = [
        (halt_view(row_with_everything(HaltRow)), HaltViewSchema()),
        (in_doubt_view(row_with_everything(InDoubtRow, amount_minor=1, currency="USD")), InDoubtViewSchema()),
        (endpoint_view(row_with_everything(EventEndpoint)), EndpointViewSchema()),
        (dead_letter_view(row_with_everything(DeadLetter)), DeadLetterViewSchema()),
        (switch_view(row_with_everything(SwitchView, gate_state=state)), SwitchViewSchema()),
        (gate_view("x", state), GateViewSchema()),
        (PACK_FIELDS, PublicPackSchema()),
        *(({one.name for one in fields(kind)}, schema()) for kind, schema in SHOWN_AS_THEY_ARE.items()),
    ]
    for members, schema in shown:
        assert set(members) == set(schema.fields), schema


def test_no_answer_is_only_an_object_to_the_document(fixtures: Any) -> None:
    document = fixtures.app().test_client().get("/openapi.json").json
    bare = {
        path
        for path, operations in document["paths"].items()
        for operation in operations.values()
        for answer in operation["responses"].values()
        for content in answer.get("content", {}).values()
        if content["schema"] == {"type": "object"}
    }
    assert bare == {"/openapi.json"}


def test_the_document_says_what_counts_where_nothing_is_given(fixtures: Any) -> None:
    document = fixtures.app().test_client().get("/openapi.json").json
    defaults = {
        (path, parameter["name"]): parameter["schema"].get("default")
        for path, operations in document["paths"].items()
        for operation in operations.values()
        for parameter in operation.get("parameters", [])
    }
    assert {path: default for (path, name), default in defaults.items() if name == "limit"} == {
        "/ops/api/approvals": 50, "/ops/api/in-doubt": 200, "/ops/api/orders": 50, "/ops/api/orders/alerts": 50,
        "/ops/api/refunds/ledger": 50, "/ops/api/webhooks/dead-letters": 200, "/ops/api/live/feed": 20,
    }  # fmt: skip
    assert defaults["/ops/api/refunds/agent/status", "agent_id"] == "retail-refund-agent"
    schemas = document["components"]["schemas"]
    assert schemas["SetHalt"]["properties"]["level"]["default"] == "kill"
    assert schemas["CreateToken"]["properties"]["expires_days"]["default"] == 30


WRITES = (
    "/ops/api/halts",
    f"/ops/api/halts/{ID}/lift",
    f"/ops/api/approvals/{ID}/approve",
    f"/ops/api/in-doubt/{ID}/resolve",
    "/ops/api/tokens",
)


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"", {}, 411), (b"{", {}, 400), (b'{"reason":"a","reason":"b"}', {}, 400), (b"[]", {}, 400), (b'{"a":NaN}', {}, 400),
        (b'{"reason":' + b"[" * 40 + b"]" * 40 + b"}", {}, 400), (b"\xff", {}, 400), (b"{} {}", {}, 400),
        (b'{"reason":"' + b"x" * 70_000 + b'"}', {}, 413), (b"{}", {"Content-Type": "text/plain"}, 415),
        (b"reason=x", {"Content-Type": "application/x-www-form-urlencoded"}, 415),
    ],
)  # fmt: skip
def test_a_body_that_is_not_plain_json_is_refused(
    fixtures: Any, body: bytes, headers: dict[str, str], status: int
) -> None:
    abe = fixtures.person("abe", "admin")
    for path in WRITES:
        answer = abe.client.post(
            path, data=body, headers={"Content-Type": "application/json", "X-CSRF-Token": abe.csrf, **headers}
        )
        assert answer.status_code == status, f"{path}: {answer.get_data(as_text=True)}"
        assert answer.content_type == "application/problem+json"


def test_a_chunked_body_is_refused(fixtures: Any) -> None:
    abe = fixtures.person("abe", "admin")
    answer = abe.client.post(
        "/ops/api/halts", data=b'{"scope":"tenant"}', headers={"X-CSRF-Token": abe.csrf, "Transfer-Encoding": "chunked"}
    )
    assert answer.status_code == 411


@pytest.mark.parametrize(
    "bad", ["x", "0", ID.upper() + "0", ID.replace("-", ""), "%00", "..", "{" + ID + "}", "1' or '1'='1"]
)
def test_what_is_no_id_names_nothing(fixtures: Any, bad: str) -> None:
    abe = fixtures.person("abe", "admin")
    assert abe.get(f"/ops/api/approvals/{bad}").status_code == 404
    assert abe.post(f"/ops/api/approvals/{bad}/approve", {"reason": "x", "digest": "d"}).status_code == 404
    assert abe.post(f"/ops/api/halts/{bad}/lift", {"reason": "x"}).status_code == 404


@pytest.mark.parametrize("audience", Audience)
def test_the_document_is_a_page_too_for_everybody_who_may_read_it(fixtures: Any, audience: Audience) -> None:
    home = "/ops" if audience.is_operators else "/live"
    require_docs_page(fixtures.app(audience).test_client(), home=home)


def test_a_wrong_method_on_a_public_route_says_what_is_allowed(fixtures: Any) -> None:
    client = fixtures.app().test_client()
    for method in ("POST", "TRACE"):
        answer = client.open("/ops/api/live/feed", method=method)
        assert answer.status_code == 405
        assert answer.headers["Allow"] == "GET, HEAD, OPTIONS"


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({"SENTINEL_INSECURE_COOKIES": "true", "SENTINEL_CONSOLE_HOST": "0.0.0.0"}, "SENTINEL_INSECURE_COOKIES"),
        ({"SENTINEL_CONSOLE_PORT": "0"}, "SENTINEL_CONSOLE_PORT"),
        ({"SENTINEL_CONSOLE_MAX_STREAMS": "0"}, "SENTINEL_CONSOLE_MAX_STREAMS"),
        ({"SENTINEL_SESSION_IDLE_SECONDS": "30000"}, "SENTINEL_SESSION_IDLE_SECONDS"),
        ({"SENTINEL_CONSOLE_ORIGIN": "console.example"}, "SENTINEL_CONSOLE_ORIGIN"),
        ({"SENTINEL_CONSOLE_ORIGIN": "https://console.example/x"}, "SENTINEL_CONSOLE_ORIGIN"),
        ({"SENTINEL_PUBLIC_AGENTS": "agent"}, "SENTINEL_PUBLIC_AGENTS"),
        ({"SENTINEL_PUBLIC_AGENTS": "agent=tenant:x"}, "SENTINEL_PUBLIC_AGENTS"),
    ],
)
def test_an_unsafe_setting_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], named: str
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UnsafeConfiguration, match=named):
        load_console_settings()


def test_all_faults_are_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SENTINEL_CONSOLE_PORT", "x")
    monkeypatch.setenv("SENTINEL_CONSOLE_THREADS", "-1")
    with pytest.raises(UnsafeConfiguration, match=r"SENTINEL_CONSOLE_PORT.*\n.*SENTINEL_CONSOLE_THREADS"):
        load_console_settings()


def test_what_is_malformed_and_what_is_unsafe_are_told_together(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "SENTINEL_SESSION_IDLE_SECONDS": "x",
        "SENTINEL_SESSION_SECONDS": "10",
        "CONFIRM_SECRETS": "short",
        "SENTINEL_PUBLIC_ID_SECRETS": f"{'0123456789' * 4},short",
        "SENTINEL_CONSOLE_ORIGIN": "nowhere",
    }.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UnsafeConfiguration) as refused:
        load_console_settings()
    told = [line.partition(":")[0] for line in refused.value.detail.splitlines()]
    # A session of ten seconds is shorter than the default for idleness, which nobody asked for.
    assert told == [
        "SENTINEL_SESSION_IDLE_SECONDS", "CONFIRM_SECRETS", "SENTINEL_SECOND_FACTOR_SECRETS",
        "SENTINEL_PUBLIC_ID_SECRETS", "SENTINEL_CONSOLE_ORIGIN",
    ]  # fmt: skip
