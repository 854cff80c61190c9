"""The wire contract over real HTTP, with sockets and a foreign client: framing, JSON, money, names, who may what."""

from __future__ import annotations

import json
import random
import socket
import time
import uuid
from typing import Any

import pytest

from tests.acceptance.hostile import HOSTILE_IDENTIFIERS, hostile_amounts, nested
from tests.acceptance.places import BOTH_PREFIXES, Reply, Served, raw, request
from tests.world import add_tenant, four_keys, guard_body, start_body, unique

POST_ROUTES = ("action/guard", "action/guard/start", "action/guard/report", "action/check", "action/report")
GET_ROUTES = ("approval/{id}", "approvals/since", "heartbeat?agent_id=a")
GUARD = f"{BOTH_PREFIXES[0]}/action/guard"


def problem(reply: Reply | None, status: int, kind: str | None = None) -> dict[str, Any]:
    """The problem document that an answer must be; fails on any other shape."""
    assert reply is not None, "no answer at all"
    assert reply.status == status, (reply.status, reply.body[:300])
    assert reply.headers["content-type"] == "application/problem+json"
    told = dict(reply.json)
    assert {"type", "title", "status", "detail", "instance"} <= told.keys()
    assert told["status"] == status
    assert told["type"].startswith("urn:sentinel:problem:")
    assert told["instance"] == reply.headers["x-request-id"]
    assert told.keys() <= {
        "type",
        "title",
        "status",
        "detail",
        "instance",
        "errors",
        "decision",
        "reason_code",
        "retryable",
    }
    for word in (b"Traceback", b"psycopg", b"select ", b"SELECT ", b'File "', b"sqlstate", b".py"):
        assert word not in reply.body, reply.body
    if kind is not None:
        assert reply.type == kind, told
    return told


def bytes_of(served: Served, body: bytes, *, path: str = GUARD, **headers: str) -> bytes:
    """A request as it goes over the socket."""
    lines = {
        "Host": f"127.0.0.1:{served.port}", "X-API-Key": served.key, "Content-Type": "application/json", "Content-Length": str(len(body)),
        "Connection": "close", **{name.replace("_", "-"): value for name, value in headers.items()},
    }  # fmt: skip
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items() if value != "-")
    return f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + body


def send(served: Served, body: bytes | str, **rest: str) -> Reply | None:
    return raw(
        served.port,
        bytes_of(served, body if isinstance(body, bytes) else body.encode("utf-8", "surrogatepass"), **rest),
    )


# Prefixes, methods, paths


def test_both_prefixes_answer_identically(served: Served) -> None:
    body = guard_body(unique("same"), value=300)
    one, other = (served.post("action/guard", body, prefix=prefix) for prefix in BOTH_PREFIXES)
    assert one.json == other.json
    assert (one.headers.get("idempotent-replayed"), other.headers.get("idempotent-replayed")) == (None, "true")
    for path in POST_ROUTES:
        replies = [served.post(path, {"x": 1}, prefix=prefix) for prefix in BOTH_PREFIXES]
        assert [reply.status for reply in replies] == [400, 400]
        assert replies[0].json["detail"] == replies[1].json["detail"]
    for path in (one.format(id=one_approval(served)) for one in GET_ROUTES):
        replies = [served.get(path, prefix=prefix) for prefix in BOTH_PREFIXES]
        assert [reply.status for reply in replies] == [200, 200], path
        assert replies[0].body == replies[1].body


def one_approval(served: Served) -> str:
    return str(served.guard(guard_body(unique("appr"), value=300))["approval_id"])


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "TRACE", "PROPFIND"])
@pytest.mark.parametrize("path", POST_ROUTES)
def test_another_method_is_405_with_the_methods_that_work(served: Served, method: str, path: str) -> None:
    reply = request(method, f"{served.url}{BOTH_PREFIXES[1]}/{path}", headers=served.headers())
    problem(reply, 405)
    assert {one.strip() for one in reply.headers["allow"].split(",")} == {"POST", "OPTIONS"}


def test_a_read_route_refuses_a_post_and_says_what_works(served: Served) -> None:
    reply = served.post("heartbeat", {})
    problem(reply, 405)
    assert {one.strip() for one in reply.headers["allow"].split(",")} == {"GET", "HEAD", "OPTIONS"}


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/nothing",
        "/api/sentinel",
        "/api/sentinel/",
        "/api/sentinel/action",
        "/api//sentinel/action/guard",
        "/static/../settings.py",
        "/static/%2e%2e/meta.py",
        "/.env",
    ],
)
def test_an_unknown_path_is_404_and_never_a_redirect(served: Served, path: str) -> None:
    problem(request("GET", served.url + path, headers=served.headers()), 404)


def test_an_approval_that_is_not_there_or_not_ones_own_is_the_same_404(served: Served) -> None:
    mine = one_approval(served)
    other = add_tenant(served.database_url, unique("other").replace("_", "-"))[1]
    colleague = served.cli_json("keys", "create", "--tenant", served.tenant_id)["key"]
    answers = [
        served.get(f"approval/{uuid.uuid4()}"), served.get("approval/not-a-uuid"), served.get(f"approval/{mine}", key=other),
        served.get(f"approval/{mine}", key=colleague),
    ]  # fmt: skip
    said = [{**problem(reply, 404, "not-found"), "instance": ""} for reply in answers]
    assert all(one == said[0] for one in said), said
    assert served.get(f"approval/{mine}").status == 200


# Credentials, tenants, agents, scopes


@pytest.mark.parametrize("headers", [
    {}, {"X-API-Key": ""}, {"X-API-Key": "wrong"}, {"X-API-Key": "snt_live_" + "A" * 43}, {"Authorization": "Bearer "}, {"Authorization": "Basic abc"},
    {"X-Admin-Token": "anything"}, {"Cookie": "sentinel=1"},
])  # fmt: skip
@pytest.mark.parametrize("path", ["action/guard", "approvals/since"])
def test_without_a_valid_key_the_answer_is_401_and_nothing_else(
    served: Served, headers: dict[str, str], path: str
) -> None:
    method = "POST" if path.startswith("action") else "GET"
    reply = request(
        method,
        f"{served.url}{BOTH_PREFIXES[0]}/{path}",
        body=guard_body() if method == "POST" else None,
        headers=headers,
    )
    told = problem(reply, 401, "unauthenticated")
    assert told["detail"] == "Invalid or missing credentials"
    assert told.keys() == {"type", "title", "status", "detail", "instance"}
    assert "bearer" in reply.headers["www-authenticate"].lower()


def test_a_key_works_in_either_header_and_the_admin_token_is_ignored(served: Served) -> None:
    url = f"{served.url}{BOTH_PREFIXES[0]}/heartbeat?agent_id=a"
    assert request("GET", url, headers={"Authorization": f"Bearer {served.key}"}).status == 200
    assert request("GET", url, headers={"X-API-Key": served.key, "X-Admin-Token": "nonsense"}).status == 200
    problem(request("GET", url, headers={"X-Admin-Token": served.key}), 401)


def test_another_tenant_in_header_or_body_is_403(served: Served) -> None:
    other = str(uuid.uuid4())
    for path in POST_ROUTES:
        problem(served.post(path, guard_body(), X_Tenant_Id=other), 403, "forbidden")
    problem(served.post("action/guard", guard_body(tenant_id=other)), 403, "forbidden")
    problem(served.post("action/check", {"agent_id": "a", "action": "b", "tenant_id": other}), 403, "forbidden")
    body = guard_body(tenant_id=served.tenant_id)
    assert served.post("action/guard", body, X_Tenant_Id=served.tenant_id).status == 200
    assert served.post("action/guard", guard_body(tenant_id=None), X_Tenant_Id=served.tenant_id.upper()).status == 200


def test_a_bound_key_speaks_only_for_its_agent(served: Served) -> None:
    key = served.cli_json("keys", "create", "--agent-id", "retail-refund-agent", "--tenant", served.tenant_id)["key"]
    assert served.post("action/guard", guard_body(), key=key).status == 200
    problem(served.post("action/guard", guard_body(agent_id="another-agent"), key=key), 403, "forbidden")
    problem(served.post("action/check", {"agent_id": "x", "action": "y"}, key=key), 403, "forbidden")
    problem(served.get("heartbeat?agent_id=another-agent", key=key), 403, "forbidden")
    problem(
        served.post(
            "action/guard/report",
            {"agent_id": "x", "action": "y", "idempotency_key": "z", "outcome": "success"},
            key=key,
        ),
        403,
    )


@pytest.mark.parametrize("scope", ["guard", "check", "heartbeat", "approvals:read", "report"])
def test_a_key_does_what_its_scope_says_and_nothing_else(served: Served, scope: str) -> None:
    key = served.cli_json("keys", "create", "--scope", scope, "--tenant", served.tenant_id)["key"]
    question = {"agent_id": "a", "action": "data.read", "params": {}}
    replies = {
        "guard": served.post("action/guard", guard_body(), key=key), "check": served.post("action/check", question, key=key),
        "report": served.post("action/report", {"agent_id": "a", "action": "b", "request_id": str(uuid.uuid4()), "status": "success"}, key=key),
        "heartbeat": served.get("heartbeat?agent_id=a", key=key), "approvals:read": served.get("approvals/since", key=key),
    }  # fmt: skip
    assert {name: reply.status for name, reply in replies.items()} == {
        name: 200 if name == scope else 403 for name in replies
    }


def test_a_revoked_key_is_dead_within_a_second_in_every_process(served: Served) -> None:
    made = served.cli_json("keys", "create", "--tenant", served.tenant_id)
    for _ in range(20):  # so that every process remembers it
        assert served.get("heartbeat?agent_id=a", key=made["key"]).status == 200
    assert served.cli("keys", "revoke", made["key_id"], "--tenant", served.tenant_id).returncode == 0
    time.sleep(1.0)
    assert {served.get("heartbeat?agent_id=a", key=made["key"]).status for _ in range(40)} == {401}


# Framing and JSON


def test_a_body_without_a_length_is_411(served: Served) -> None:
    body = json.dumps(guard_body()).encode()
    chunks = f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n"
    problem(
        raw(served.port, bytes_of(served, b"", Content_Length="-", Transfer_Encoding="chunked") + chunks),
        411,
        "length-required",
    )
    problem(raw(served.port, bytes_of(served, b"", Content_Length="-")), 411, "length-required")


def test_more_than_64_kib_is_413_and_exactly_64_kib_is_read(served: Served) -> None:
    fill = guard_body(unique("big"))
    padding = 64 * 1024 - len(json.dumps(fill).encode())
    body = json.dumps(fill).encode() + b" " * padding
    assert len(body) == 65536
    reply = send(served, body)
    assert reply is not None
    assert reply.status == 200, reply.body
    problem(send(served, body + b" "), 413, "body-too-large")
    problem(raw(served.port, bytes_of(served, b"{}", Content_Length="99999999999")), 413, "body-too-large")


@pytest.mark.parametrize("length", ["abc", "-1", "1e3", "0x10", "1_0", "１２", "+5", "5, 5", ""])
def test_a_length_that_is_no_number_is_refused_and_decides_nothing(served: Served, length: str) -> None:
    try:
        reply = raw(served.port, bytes_of(served, b"{}", Content_Length=length or " "))
    except UnicodeEncodeError:
        return
    # The server below us may end such a connection by itself; what counts is that it is refused and nobody's fault.
    assert reply is None or 400 <= reply.status < 500, reply


def test_two_framings_at_once_never_make_two_requests(served: Served) -> None:
    key = unique("smuggled")
    inner = bytes_of(served, json.dumps(guard_body(key)).encode())
    outer = bytes_of(
        served, b"0\r\n\r\n" + inner, Transfer_Encoding="chunked", Connection="keep-alive", Content_Length="5"
    )
    reply = raw(served.port, outer)
    assert reply is None or reply.status >= 400
    again = served.post("action/guard", guard_body(key))
    assert again.headers.get("idempotent-replayed") is None, "the hidden request was decided"


def test_a_body_shorter_than_its_length_decides_nothing(served: Served) -> None:
    key = unique("cut")
    data = bytes_of(served, json.dumps(guard_body(key)).encode(), Content_Length="5000")
    with socket.create_connection(("127.0.0.1", served.port), timeout=5) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        answer = connection.recv(4096)
    assert not answer or b" 400 " in answer.split(b"\r\n")[0]
    assert served.post("action/guard", guard_body(key)).headers.get("idempotent-replayed") is None


@pytest.mark.parametrize(
    "content_type",
    ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/xml", "-"],
)
def test_another_content_type_is_415(served: Served, content_type: str) -> None:
    problem(send(served, json.dumps(guard_body()), Content_Type=content_type), 415, "unsupported-media-type")


def test_a_content_type_with_a_charset_is_read(served: Served) -> None:
    reply = send(served, json.dumps(guard_body(unique("charset"))), Content_Type="application/json; charset=utf-8")
    assert reply is not None
    assert reply.status == 200


_GOOD = json.dumps(guard_body("corpus"))
JSON_CORPUS: dict[str, bytes | str] = {
    "empty": "", "blank": "   ", "null": "null", "array": "[]", "text": '"x"', "number": "1", "true": "true", "cut": _GOOD[:-1], "cut in a text": '{"a": "b',
    "trailing bytes": _GOOD + "x", "two objects": _GOOD + _GOOD, "trailing comma": _GOOD[:-1] + ",}", "trailing nul": _GOOD + "\0",
    "duplicate key": '{"agent_id": "a", ' + _GOOD[1:], "duplicate key, same value": _GOOD[:-1] + ', "action": "refund.create"}',
    "duplicate key deep": _GOOD[:-1] + ', "context": {"a": {"b": 1, "b": 1}}}', "duplicate by escape": _GOOD[:-1] + ', "\\u0061ction": "refund.create"}',
    "NaN": '{"params": {"x": NaN}}', "Infinity": '{"params": {"x": Infinity}}', "-Infinity": '{"params": {"x": -Infinity}}', "1e400": '{"params": {"x": 1e400}}',
    "1e3": _GOOD[:-1] + ', "context": {"x": 1e3}}', "17 deep": '{"params":' + nested(16) + "}", "17 lists deep": '{"params":{"a":' + nested(15, "list") + "}}",
    "2000 [": "[" * 2000, "2000 { ": '{"a":' * 2000, "60000 [": "[" * 60000, "BOM": b"\xef\xbb\xbf" + _GOOD.encode(), "UTF-16": _GOOD.encode("utf-16"), "UTF-32": _GOOD.encode("utf-32-le"),
    "bad UTF-8": b'{"agent_id": "\xff\xfe"}', "overlong UTF-8": b'{"agent_id": "\xc0\xaf"}', "surrogate bytes": b'{"agent_id": "\xed\xa0\x80"}', "latin-1": '{"agent_id": "é"}'.encode("latin-1"),
    "lone surrogate": _GOOD[:-1] + ', "context": {"x": "\\ud800"}}', "lone low surrogate": _GOOD[:-1] + ', "context": {"x": "\\udc00a"}}', "control character": '{"agent_id": "a\tb"}',
    "raw newline": '{"agent_id": "a\nb"}', "nul escape": _GOOD[:-1] + ', "context": {"x": "a\\u0000b"}}', "comment": '{"a": 1 /* x */}', "single quotes": "{'a': 1}", "unquoted": "{a: 1}",
    "hex": '{"params": {"x": 0x10}}', "octal": '{"params": {"x": 010}}', "plus": '{"params": {"x": +1}}', "leading dot": '{"params": {"x": .5}}', "trailing dot": '{"params": {"x": 5.}}',
    "big int": '{"params": {"x": 123456789012345678901234567890}}', "5000 digits": '{"params": {"x": ' + "9" * 5000 + "}}", "2^53": _GOOD[:-1] + ', "context": {"x": 9007199254740993}}',
    "a fraction elsewhere": _GOOD[:-1] + ', "context": {"x": 0.5}}', "bad escape": '{"a": "\\x41"}', "cut escape": '{"a": "\\u00"}', "unknown field": _GOOD[:-1] + ', "approved": true}',
    "params twice": _GOOD[:-1] + ', "context": {}}', "params a list": _GOOD.replace('"params": {', '"params": [], "x": {'), "true as a name": '{"agent_id": true}',
}  # fmt: skip


@pytest.mark.parametrize("name", JSON_CORPUS)
def test_json_that_two_readers_could_read_differently_is_400(served: Served, name: str) -> None:
    problem(send(served, JSON_CORPUS[name]), 400, "invalid-request")


def test_json_at_the_limit_of_depth_is_read(served: Served) -> None:
    body = guard_body(unique("deep"), params={"note": None})
    body["params"]["deep"] = json.loads(nested(14))
    assert served.post("action/guard", body).status == 200


# Money and names


def test_no_hostile_amount_is_accepted(served: Served) -> None:
    amounts = hostile_amounts()
    assert len(amounts) >= 200
    template = json.dumps(guard_body("hostile-amount", value="@@"))
    accepted = []
    for text in amounts:
        for body in (
            template.replace('"@@"', text),
            template.replace('{"value": "@@", "currency": "USD"}', f'{text}, "currency": "USD"'),
        ):
            if '"amount": null' in body:
                continue  # absent, not hostile: the next test
            reply = served.post("action/guard", body.encode("utf-8", "surrogatepass"))
            if reply.status != 400 or reply.headers["content-type"] != "application/problem+json":
                accepted.append((text, reply.status, reply.body[:120]))
    assert not accepted, accepted
    print(f"{2 * len(amounts)} hostile amounts, 0 accepted")
    first = served.post("action/guard", guard_body("hostile-amount"))
    assert (first.status, first.headers.get("idempotent-replayed")) == (200, None), (
        "a refused request left something behind"
    )


def test_null_as_an_amount_is_no_amount_and_then_nothing_allows_it(served: Served) -> None:
    body = guard_body(params={"amount": None, "currency": "USD"})
    assert served.guard(body)["decision"] == "DENY"


def test_the_spellings_of_one_amount_are_one_operation(served: Served) -> None:
    template = json.dumps(guard_body(unique("spelling"), value="@@"))
    texts = ["126", '"126"', '"126.0"', '"126.00"', "126.0", "126.00"]
    bodies = [template.replace('"@@"', text) for text in texts] + [
        template.replace('{"value": "@@", "currency": "USD"}', f'{text}, "currency": "USD"') for text in texts
    ]
    replies = [served.post("action/guard", body.encode()) for body in bodies]
    assert {reply.status for reply in replies} == {200}
    assert len({reply.json["operation_id"] for reply in replies}) == 1
    assert replies[0].json["proof_pack"]["amount"] == {"value": 126, "currency": "USD"}
    half = served.guard(guard_body(value="126.50"))
    assert half["proof_pack"]["amount"] == {"value": "126.50", "currency": "USD"}


@pytest.mark.parametrize(
    "currency",
    ["usd", "Usd", "US", "USDT", "", " USD", "USD ", "U\u0405D", "ＵＳＤ", "XXX", "BTC", 840, None, True, ["USD"]],
)
def test_a_currency_that_is_no_iso_code_is_400(served: Served, currency: Any) -> None:
    problem(served.post("action/guard", guard_body(params={"amount": {"value": 1, "currency": currency}})), 400)


def test_no_hostile_identifier_is_accepted_anywhere(served: Served) -> None:
    accepted = []
    for text in HOSTILE_IDENTIFIERS:
        bodies = [
            guard_body(**{name: text})
            for name in ("agent_id", "action", "idempotency_key", "resource", "risk_class", "tenant_id")
        ]
        bodies += [
            guard_body(params={name: text}) for name in ("ledger_entry_id", "refund_id", "account_ref", "order_ref")
        ]
        for body in bodies:
            reply = served.post("action/guard", body)
            if reply.status != 400:
                accepted.append((text, reply.status, reply.body[:100]))
    assert not accepted, accepted


@pytest.mark.parametrize(
    "name, most", [("agent_id", 128), ("action", 128), ("idempotency_key", 255), ("resource", 255), ("risk_class", 64)]
)
def test_an_identifier_has_a_length_that_still_passes_and_one_that_does_not(
    served: Served, name: str, most: int
) -> None:
    start = unique("long")
    assert served.post("action/guard", guard_body(**{name: start.ljust(most, "x")})).status == 200
    told = problem(
        served.post("action/guard", guard_body(**{name: start.ljust(most + 1, "x")})), 400, "invalid-request"
    )
    assert list(told["errors"]) == [name]


@pytest.mark.parametrize("path", ["action/guard", "action/guard/start", "action/guard/report"])
@pytest.mark.parametrize("key", [None, "", " ", 5, [], {}, True, "absent"])
def test_without_an_idempotency_key_nothing_runs(served: Served, key: Any, path: str) -> None:
    body = guard_body()
    del body["idempotency_key"]
    problem(served.post(path, body if key == "absent" else {**body, "idempotency_key": key}), 400, "invalid-request")


# Replays, conflicts, permits


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
        assert list(told["errors"]) == [field]
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
    for token in ("x", head, f"{head}.", f".{tail}", f"{tail}.{head}", start["permit_token"][:-2] + "AA", "A" * 500):
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


# Headers and shape


def test_a_request_id_is_echoed_or_made(served: Served) -> None:
    assert served.post("action/guard", guard_body(), X_Request_ID="abc-123").headers["x-request-id"] == "abc-123"
    assert served.get("heartbeat?agent_id=a").headers["x-request-id"]
    for bad in ("a b", "x" * 129, "a;b", "<script>"):
        made = served.post("action/guard", guard_body(), X_Request_ID=bad).headers["x-request-id"]
        assert made != bad
        assert made.isalnum()


def test_decisions_and_problems_are_never_stored(served: Served) -> None:
    for reply in (
        served.post("action/guard", guard_body()),
        served.post("action/guard", {}),
        served.get("approvals/since"),
        served.get("heartbeat?agent_id=a"),
    ):
        assert reply.headers["cache-control"] == "no-store"


def test_optional_members_are_left_out_and_never_null(served: Served) -> None:
    def nulls(value: Any) -> bool:
        return (
            value is None
            or (isinstance(value, dict) and any(map(nulls, value.values())))
            or (isinstance(value, list) and any(map(nulls, value)))
        )

    answers = [served.guard(guard_body(value=value)) for value in (1, 300, 5000)]
    answers.append(served.guard(guard_body(action="never.covered")))
    assert not any(map(nulls, answers))
    allowed, pending, denied, uncovered = answers
    assert {"permit_token", "permit_expires_at"} <= allowed.keys()
    assert not {"approval_id", "expires_at", "approver", "approved_at", "outcome"} & allowed.keys()
    assert {"approval_id", "expires_at"} <= pending.keys()
    assert not {"permit_token", "permit_expires_at"} & (pending.keys() | denied.keys() | uncovered.keys())
    assert (uncovered["decision"], uncovered["status"], uncovered["reason_code"]) == (
        "DENY",
        "denied",
        "no_matching_policy",
    )
    assert all(answer["resource"] and answer["risk_class"] for answer in answers)


def test_the_proof_pack_carries_the_hash_of_itself(served: Served) -> None:
    import hashlib

    import rfc8785

    pack = served.guard(guard_body())["proof_pack"]
    carried = pack.pop("hash")
    assert carried == "sha256:" + hashlib.sha256(rfc8785.dumps(pack)).hexdigest()


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=501",
        "limit=-1",
        "limit=abc",
        "limit=1e2",
        "limit=１",
        "since=yesterday",
        "since=2026-01-01T00:00:00",
        "since=2026-13-01T00:00:00Z",
    ],
)
def test_a_query_that_breaks_a_rule_is_400(served: Served, query: str) -> None:
    problem(served.get(f"approvals/since?{query}"), 400, "invalid-request")


def test_the_stream_begins_with_connected_whatever_last_seen_says(served: Served) -> None:
    for last_seen in ("", "nonsense", "2026-01-01T00:00:00+00:00", "9999-99-99"):
        with socket.create_connection(("127.0.0.1", served.port), timeout=5) as connection:
            connection.sendall(
                f"GET {BOTH_PREFIXES[1]}/approvals/stream?tenant_id={served.tenant_id}&last_seen={last_seen} HTTP/1.1\r\n"
                f"Host: x\r\nX-API-Key: {served.key}\r\nAccept: text/event-stream\r\n\r\n".encode()
            )
            got = b""
            while b'data: {"type":"CONNECTED"}' not in got:
                chunk = connection.recv(4096)
                assert chunk, got
                got += chunk
        assert b" 200 " in got.split(b"\r\n")[0]
        assert b"text/event-stream" in got


def test_health_readiness_and_metrics_answer_without_a_key(served: Served) -> None:
    assert request("GET", f"{served.url}/healthz").status == 200
    assert request("GET", f"{served.url}/readyz").json["status"] == "ready"
    text = request("GET", f"{served.url}/metrics").body.decode()
    assert "sentinel_decisions_total" in text
