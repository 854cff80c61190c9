"""The wire contract over real HTTP, down to the socket: framing, JSON, amounts and names that nobody may misread."""

from __future__ import annotations

import gzip
import json
import socket
from typing import Any

import pytest

from tests.acceptance.contract import bytes_of, problem, send
from tests.acceptance.hostile import HOSTILE_IDENTIFIERS, hostile_amounts, nested
from tests.support.fixtures import guard_body, unique
from tests.support.served_programs import Served, raw


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
    key = unique("length")
    reply = raw(served.port, bytes_of(served, json.dumps(guard_body(key)).encode(), Content_Length=length or " "))
    # The server below us may end such a connection by itself; what counts is that it is refused and nobody's fault.
    assert reply is None or 400 <= reply.status < 500, reply
    assert served.post("action/guard", guard_body(key)).headers.get("idempotent-replayed") is None


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
    with socket.create_connection(("127.0.0.1", served.port), timeout=60) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        answer = connection.recv(4096)
    assert not answer or b" 400 " in answer.split(b"\r\n")[0]
    assert served.post("action/guard", guard_body(key)).headers.get("idempotent-replayed") is None


@pytest.mark.parametrize(
    "content_type",
    [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/xml",
        "-",
        "application/json; charset=latin-1",
        "application/jsonx",
    ],
)
def test_another_content_type_is_415(served: Served, content_type: str) -> None:
    problem(send(served, json.dumps(guard_body()), Content_Type=content_type), 415, "unsupported-media-type")


@pytest.mark.parametrize("charset", ["; charset=utf-8", ';charset="UTF-8"', "; charset=utf8", ""])
def test_a_content_type_with_its_charset_is_read(served: Served, charset: str) -> None:
    reply = send(served, json.dumps(guard_body(unique("charset"))), Content_Type=f"application/json{charset}")
    assert reply is not None
    assert reply.status == 200


def test_a_compressed_body_is_415_and_not_said_to_be_wrong_text(served: Served) -> None:
    packed = gzip.compress(json.dumps(guard_body()).encode())
    problem(send(served, packed, Content_Encoding="gzip"), 415, "unsupported-media-type")
    plain = send(served, json.dumps(guard_body(unique("identity"))), Content_Encoding="identity")
    assert plain is not None
    assert plain.status == 200


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
