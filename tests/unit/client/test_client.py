"""The client takes nothing for a permission that is not exactly one, and no answer holds it longer than it may (G18)."""

from __future__ import annotations

import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from sentinel.client import (
    ActionDenied,
    ActionExpired,
    AlreadyStarted,
    ApprovalPending,
    AsyncClient,
    Client,
    GuardAnswer,
    KeyConflict,
    NoAnswerKind,
    Rejected,
    Unreachable,
    guarded,
)
from sentinel.client.transport import Transport
from tests.support.fake_authority import FakeAuthority
from tests.support.fake_exchange import Exchange
from tests.support.fake_faults import FAULTS, always
from tests.support.harness import on_a_loop
from tests.support.ledger_fixtures import wait_until
from tests.support.ports import free_port
from tests.support.scripted_server import SLACK

RISK = {"duplicate_refund": False, "stale_window": False, "suspicious_reason": False, "customer_attempts_24h": 1}


@pytest.fixture
def client(authority: FakeAuthority) -> Iterator[Client]:
    """A client of it."""
    with Client(authority.url, "key", agent_id="agent", timeout_seconds=60, retries=1) as made:
        yield made


@pytest.fixture
def hasty(authority: FakeAuthority) -> Iterator[Client]:
    """A client that soon gives up."""
    with Client(authority.url, "key", agent_id="agent", timeout_seconds=0.4, retries=1) as made:
        yield made


def ask(client: Client, value: int = 1, key: str = "k") -> GuardAnswer:
    """A guard for one unit of money or `value`."""
    return client.guard(
        action="refund.create", params={"amount": {"value": value, "currency": "USD"}, "risk": RISK}, idempotency_key=key,
        resource="refund/rf_1",
    )  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_no_faulty_answer_is_a_permission_and_none_takes_longer_than_the_deadline(
    authority: FakeAuthority, hasty: Client, fault: str
) -> None:
    authority.misbehave = always(FAULTS[fault])
    began = time.monotonic()
    with pytest.raises(Unreachable):
        ask(hasty)
    assert time.monotonic() - began < SLACK


@pytest.mark.parametrize("fault", FAULTS)
def test_in_a_batch_a_faulty_answer_is_an_error_and_never_a_permission(
    authority: FakeAuthority, hasty: Client, fault: str
) -> None:
    authority.misbehave = always(FAULTS[fault])
    questions = [
        {
            "action": "refund.create",
            "params": {"amount": {"value": 1, "currency": "USD"}, "risk": RISK},
            "idempotency_key": f"k{n}",
            "resource": "refund/rf_1",
        }
        for n in range(3)
    ]
    assert [type(answer) for answer in hasty.guard_many(questions)] == [Unreachable] * 3


@pytest.mark.parametrize(
    "body", [{"started": 1}, {"started": "true", "start_event_id": str(uuid.uuid4())}, {}, {"started": True}]
)
def test_a_start_counts_only_when_it_says_so(authority: FakeAuthority, client: Client, body: dict[str, Any]) -> None:
    answer = ask(client)
    authority.misbehave = always(lambda exchange: exchange.answer(200, body))
    with pytest.raises(Unreachable):
        client.start(answer, uuid.uuid4())


def test_a_careless_reader_would_take_some_for_permissions() -> None:
    """The mutant: `decision == "ALLOW"` alone believes answers without a permit, and error answers."""
    believed = []
    for name, fault in FAULTS.items():
        said: list[Any] = []
        exchange = Exchange.__new__(Exchange)
        exchange.body = {"resource": "refund/rf_1"}
        exchange.answer = lambda status, body, **_: said.append(body)  # type: ignore[method-assign]
        exchange.raw = exchange.hang_up = lambda *_: None  # type: ignore[method-assign]
        if name != "hangs" and not name.startswith("drips"):
            fault(exchange)
        believed += [name for body in said if isinstance(body, dict) and body.get("decision") == "ALLOW"]
    assert {"ALLOW without a permit", "500", "JSON as HTML", "another resource"} <= set(believed)


def test_an_answer_is_a_value_with_its_question(client: Client) -> None:
    answer = ask(client)
    assert answer.may_start
    assert (answer.idempotency_key, answer.action, answer.agent_id) == ("k", "refund.create", "agent")
    assert not answer.replayed
    assert ask(client).replayed
    assert ask(client).permit_token == answer.permit_token


def test_a_printed_answer_does_not_hand_out_its_permit(client: Client) -> None:
    answer = ask(client)
    assert answer.permit_token and answer.permit_token not in f"{answer!r} {answer} {[answer]}"
    assert answer.operation_id in repr(answer)


def test_a_guard_always_carries_the_keys_that_announce_a_start(authority: FakeAuthority, client: Client) -> None:
    seen: list[Any] = []
    authority.misbehave = lambda exchange: bool(seen.append(exchange.body))
    client.guard(action="a", params={"amount": {"value": 1, "currency": "USD"}, "risk": RISK}, idempotency_key="x")
    assert seen[0].keys() >= {"resource", "risk_class", "evidence_context"}
    assert None not in seen[0].values()


def test_pending_and_denied_are_answers_without_a_permit(client: Client) -> None:
    pending, denied = ask(client, 500, "p"), ask(client, 5000, "d")
    assert (pending.status, pending.may_start, pending.approval_id is not None) == ("pending", False, True)
    assert (denied.status, denied.may_start, denied.reason_code) == ("denied", False, "over_limit")


def test_a_key_for_another_operation_is_a_conflict_and_is_not_repeated(
    authority: FakeAuthority, client: Client
) -> None:
    ask(client)
    authority.calls.clear()
    with pytest.raises(KeyConflict) as raised:
        ask(client, 2)
    assert authority.calls == ["action/guard"]
    first = {"amount": {"value": 1, "currency": "USD"}, "risk": RISK}
    assert (raised.value.recorded_params, raised.value.tightened) == (first, None)
    large = {**first, "amount": {"value": 2000, "currency": "USD"}}
    for answered in client.guard_many([{"action": "refund.create", "params": large, "idempotency_key": "k"}] * 2):
        assert isinstance(answered, KeyConflict) and answered.recorded_params == first
        assert answered.tightened == {"decision": "DENY", "reason_code": "over_limit", "reason": "over_limit!"}


def test_decided_approvals_come_in_answers_that_are_small_enough(authority: FakeAuthority, client: Client) -> None:
    began = datetime(2026, 1, 1, tzinfo=UTC)
    limits: list[int] = []
    decided = [
        {"request_id": str(uuid.uuid4()), "status": "rejected", "reason": "x" * 9000, "decided_at": moment.isoformat()}
        for moment in (began + timedelta(seconds=place + 1) for place in range(200))
    ]

    def answer(exchange: Exchange) -> bool:
        asked = parse_qs(urlsplit(exchange.handler.path).query)
        since, limit = datetime.fromisoformat(asked["since"][0]), int(asked["limit"][0])
        limits.append(limit)
        later = [one for one in decided if datetime.fromisoformat(one["decided_at"]) > since]
        exchange.answer(200, {"decisions": later[:limit]})
        return True

    authority.misbehave = answer
    assert [one.request_id for one in client.approvals_since(began)] == [one["request_id"] for one in decided]
    assert len(client.approvals_since(began, limit=100)) == 100
    assert limits == [64, 64, 64, 64, 64, 36]


def test_a_refused_request_says_why(authority: FakeAuthority, client: Client) -> None:
    authority.misbehave = always(lambda exchange: exchange.problem(403, "permit-refused", "halted"))
    with pytest.raises(Rejected) as refused:
        client.heartbeat()
    assert (refused.value.status, refused.value.code, "halted" in refused.value.detail) == (403, "permit-refused", True)


def test_a_passing_fault_is_repeated_with_the_same_key(authority: FakeAuthority, client: Client) -> None:
    left = [1]
    authority.misbehave = lambda exchange: (
        bool(left) and bool(left.pop()) and not exchange.problem(503, "engine-unavailable")
    )
    assert ask(client).may_start
    assert authority.calls == ["action/guard"] * 2


def test_a_wait_that_is_longer_than_the_deadline_is_not_waited(authority: FakeAuthority, client: Client) -> None:
    authority.misbehave = always(lambda exchange: exchange.answer(429, {"type": "rate-limited"}, Retry_After="90"))
    began = time.monotonic()
    with pytest.raises(Unreachable) as busy:
        ask(client)
    assert busy.value.retry_after_seconds == 90
    assert time.monotonic() - began < SLACK


def test_nobody_listening_is_said_at_once() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        with Client(url, "key", agent_id="a", retries=0) as client, pytest.raises(Unreachable) as refused:
            client.heartbeat()
    assert refused.value.kind is NoAnswerKind.REFUSED


SURELY_NOTHING: dict[str, Callable[[Exchange], None]] = {
    "429": lambda exchange: exchange.answer(429, {"type": "rate-limited"}),
    "still deciding": lambda exchange: exchange.problem(409, "still-deciding"),
    "401": lambda exchange: exchange.problem(401, "unauthenticated"),
}
"""Answers after which nothing has happened, where nothing was sent before."""


def test_an_answer_that_puts_the_call_off_has_the_code_of_its_problem(authority: FakeAuthority, client: Client) -> None:
    codes: list[str | None] = []
    for end in (lambda exchange: exchange.problem(429, "too-many-open-questions"), SURELY_NOTHING["still deciding"],
                lambda exchange: exchange.answer(429, {})):  # fmt: skip
        authority.misbehave = always(end)
        found = client.guard_many([
            {"action": "refund.create", "params": {"amount": {"value": 1, "currency": "USD"}, "risk": RISK},
             "idempotency_key": f"c{number}", "resource": "refund/rf_1"} for number in range(2)
        ])  # fmt: skip
        codes += [one.code for one in found if isinstance(one, Unreachable)]
    assert codes == ["too-many-open-questions"] * 2 + ["still-deciding"] * 2 + [None] * 2


def errors_of(client: Client, questions: int) -> list[bool]:
    """Of each question of one call, which fails: whether it may have arrived all the same."""
    found = client.guard_many([
        {"action": "refund.create", "params": {"amount": {"value": 1, "currency": "USD"}, "risk": RISK},
         "idempotency_key": f"k{number}", "resource": "refund/rf_1"} for number in range(questions)
    ])  # fmt: skip
    return [one.may_have_arrived for one in found if isinstance(one, Unreachable | Rejected)]


@pytest.mark.parametrize("questions", [1, 3])
@pytest.mark.parametrize("end", SURELY_NOTHING)
def test_an_error_after_a_lost_try_says_that_the_call_may_have_arrived(
    authority: FakeAuthority, client: Client, end: str, questions: int
) -> None:
    authority.misbehave = always(SURELY_NOTHING[end])
    assert errors_of(client, questions) == [False] * questions
    ways = iter([Exchange.hang_up])
    authority.misbehave = always(lambda exchange: next(ways, SURELY_NOTHING[end])(exchange))
    assert errors_of(client, questions) == [True] * questions


@pytest.mark.parametrize(("retries", "keeps"), [(1, False), (1, True), (0, True)])
def test_nobody_listening_any_more_does_not_say_that_nothing_arrived(retries: int, keeps: bool) -> None:
    """A connection that was kept is replaced within one try: what it was sent may have been read."""
    with FakeAuthority().running() as authority, Client(authority.url, "key", agent_id="a", retries=retries) as client:
        if keeps:
            assert client.heartbeat() == "OK"
        authority.misbehave = always(lambda exchange: (authority.stop_listening(), exchange.hang_up())[1])
        assert errors_of(client, 1) == [True]
        assert errors_of(client, 1) == [False], "nothing of this call was sent"


def test_a_server_that_was_restarted_is_noticed_without_an_error() -> None:
    fake, port = FakeAuthority(), free_port()
    with fake.running(port) as up:
        client = Client(up.url, "key", agent_id="a", retries=0)
        assert client.heartbeat() == "OK"
    client._transport._idle[0].shutdown(socket.SHUT_RDWR)
    with fake.running(port):
        assert client.heartbeat() == "OK"
    client.close()


@contextmanager
def call_under_way(authority: FakeAuthority) -> Iterator[tuple[Client, list[Unreachable]]]:
    """A client with a call in a thread of its own, and what that call raised; the block's end waits for it."""
    ended: list[Unreachable] = []

    def call() -> None:
        try:
            client.heartbeat()
        except Unreachable as error:
            ended.append(error)

    with Client(authority.url, "key", agent_id="a", timeout_seconds=30, retries=2) as client:
        thread = threading.Thread(target=call)
        thread.start()
        yield client, ended
        thread.join(60)


def test_abort_ends_calls_under_way(authority: FakeAuthority) -> None:
    never = threading.Event()
    authority.misbehave = always(lambda exchange: (never.wait(60), exchange.hang_up())[1])
    try:
        with call_under_way(authority) as (client, ended):
            wait_until(lambda: authority.calls == ["heartbeat"])
            client.abort()
        assert [error.kind for error in ended] == [NoAnswerKind.CLOSED]
    finally:
        never.set()


def test_a_call_that_connects_while_the_client_is_aborted_is_not_sent(
    authority: FakeAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    dialled, go_on = threading.Event(), threading.Event()
    real = Transport._dial

    def slow(self: Transport, deadline: float) -> Any:
        link = real(self, deadline)
        dialled.set()
        go_on.wait(20)
        return link

    monkeypatch.setattr(Transport, "_dial", slow)
    with call_under_way(authority) as (client, ended):
        assert dialled.wait(60)
        client.abort()
        go_on.set()
    assert [error.kind for error in ended] == [NoAnswerKind.CLOSED] and authority.calls == []


def test_who_waits_for_a_decision_stops_waiting_once_the_client_is_closed() -> None:
    began = time.monotonic()
    client = Client("http://127.0.0.1:1", "key", agent_id="a")
    client.abort()
    with pytest.raises(Unreachable) as aborted:
        client.wait_for_approval("a", timeout_seconds=30)

    async def closed() -> None:
        client = AsyncClient("http://127.0.0.1:1", "key", agent_id="a")
        await client.close()
        await client.wait_for_approval("a", timeout_seconds=30)

    with pytest.raises(Unreachable) as closing:
        on_a_loop(closed())
    assert (aborted.value.kind, closing.value.kind) == (NoAnswerKind.CLOSED, NoAnswerKind.CLOSED)
    assert time.monotonic() - began < SLACK


@pytest.mark.parametrize(
    "url",
    [
        "ftp://x", "127.0.0.1:80", "http://", "http://x?y=1", "http://[", "http://127.0.0.1:78600", "http://127.0.0.1:786O",
        "http://127.0.0.1:0", "http://127.0.0.1:7860 ", "http://a..b:7860", "http://.b:7860", "http://ü.example",
        "http://127.0.0.1:7860/ü", "http://127.0.0.1:7860/a b",
    ],
)  # fmt: skip
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="address"):
        Client(url, "key")
    with pytest.raises(ValueError, match="address"):
        AsyncClient(url, "key")


def test_a_key_cannot_smuggle_a_header() -> None:
    with pytest.raises(ValueError, match="X-API-Key"):
        Client("http://127.0.0.1:1", "key\r\nX-Tenant-Id: other")


def test_chunked_answers_are_read(authority: FakeAuthority, client: Client) -> None:
    data = b'{"status": "OK"}'
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    authority.misbehave = always(lambda e: e.raw(head + b"%x\r\n%s\r\n0\r\n\r\n" % (len(data), data)))
    assert [client.heartbeat() for _ in range(2)] == ["OK", "OK"]


def test_guarded_runs_the_block_once_started_and_reports(authority: FakeAuthority, client: Client) -> None:
    with guarded(
        client, "a", params={"amount": {"value": 1, "currency": "USD"}, "risk": RISK}, idempotency_key="g"
    ) as answer:
        assert authority.operations["g"].start_id is not None
        assert answer.may_start
    assert authority.operations["g"].outcome == "success"


def test_guarded_declares_how_long_its_block_may_take(authority: FakeAuthority, client: Client) -> None:
    fields = {"params": {"amount": {"value": 1, "currency": "USD"}, "risk": RISK}}
    with guarded(client, "a", idempotency_key="g", act_within_seconds=1200, **fields):
        pass
    guarded(client, "a", idempotency_key=lambda: "h", act_within_seconds=5, **fields)(lambda: None)()
    assert [authority.operations[key].declared for key in "gh"] == [[1200], [5]]


def test_guarded_reports_an_exception_as_unknown_and_raises_it(authority: FakeAuthority, client: Client) -> None:
    run = guarded(client, "a", params={"amount": {"value": 1, "currency": "USD"}, "risk": RISK}, idempotency_key="g")
    with pytest.raises(KeyError), run:
        raise KeyError("secret words")
    assert authority.operations["g"].outcome == "error"
    assert "secret" not in str(authority.operations["g"].report)


@pytest.mark.parametrize(
    "value, error", [(500, ApprovalPending), (5000, ActionDenied)]
)  # fmt: skip
def test_guarded_does_not_enter_the_block_without_permission(
    client: Client, value: int, error: type[Exception]
) -> None:
    run = guarded(
        client, "a", params={"amount": {"value": value, "currency": "USD"}, "risk": RISK}, idempotency_key="g"
    )
    with pytest.raises(error), run:
        pytest.fail("entered")


def test_guarded_does_not_enter_the_block_twice(client: Client) -> None:
    calls = []

    @guarded(
        client, "a", params=lambda value: {"amount": {"value": value, "currency": "USD"}, "risk": RISK},
        idempotency_key=lambda value: f"key:{value}",
    )  # fmt: skip
    def pay(value: int) -> None:
        calls.append(value)

    pay(1)
    pay(2)
    with pytest.raises(AlreadyStarted):
        pay(1)
    assert calls == [1, 2]


def test_guarded_stops_at_a_permit_that_ran_out(authority: FakeAuthority, client: Client) -> None:
    authority.misbehave = always(lambda exchange: exchange.problem(410, "permit-expired"), "action/guard/start")
    run = guarded(client, "a", params={"amount": {"value": 1, "currency": "USD"}, "risk": RISK}, idempotency_key="g")
    with pytest.raises(ActionExpired), run:
        pytest.fail("entered")


def test_the_client_needs_nothing_of_the_rest_of_sentinel() -> None:
    import subprocess
    import sys

    code = (
        "import sys, sentinel.client\n"
        "ours = {m for m in sys.modules if m.startswith('sentinel.') and not m.startswith('sentinel.client')}\n"
        "assert not ours, ours"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
