"""The asynchronous client takes nothing for a permission that is not exactly one, and gives up within its time (G18)."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from sentinel.client import (
    ActionDenied,
    AlreadyStarted,
    ApprovalPending,
    AsyncClient,
    Client,
    GuardAnswer,
    KeyConflict,
    NoAnswerKind,
    Rejected,
    Unreachable,
    async_transport,
    guarded,
)
from tests.support.fake_authority import FakeAuthority
from tests.support.fake_exchange import Exchange
from tests.support.fake_faults import FAULTS, always
from tests.support.harness import on_a_loop
from tests.support.scripted_server import SLACK

RISK = {"duplicate_refund": False, "stale_window": False, "suspicious_reason": False, "customer_attempts_24h": 1}


def params(value: int) -> dict[str, Any]:
    """A refund of this many dollars."""
    return {"amount": {"value": value, "currency": "USD"}, "risk": RISK}


def with_client(authority: FakeAuthority, use: Callable[[AsyncClient], Awaitable[Any]], **over: Any) -> Any:
    """`use` awaited with a client on a loop of its own."""

    async def run() -> Any:
        options = {"agent_id": "agent", "timeout_seconds": 60.0, "retries": 1, **over}
        async with AsyncClient(authority.url, "key", **options) as client:
            return await use(client)

    return on_a_loop(run())


async def ask(client: AsyncClient, value: int = 1, key: str = "k") -> GuardAnswer:
    """A guard for one refund."""
    return await client.guard(action="refund.create", params=params(value), idempotency_key=key, resource="refund/rf_1")


@pytest.mark.parametrize("fault", FAULTS)
def test_no_faulty_answer_is_a_permission_and_none_takes_longer_than_the_deadline(
    authority: FakeAuthority, fault: str
) -> None:
    authority.misbehave = always(FAULTS[fault])
    began = time.monotonic()
    with pytest.raises(Unreachable):
        with_client(authority, ask, timeout_seconds=0.4)
    assert time.monotonic() - began < SLACK


@pytest.mark.parametrize("fault", ["drips the head", "drips the body"])
def test_a_call_ends_at_its_deadline_however_slowly_the_server_sends(authority: FakeAuthority, fault: str) -> None:
    """It sends for a minute and hangs up, which would be another error."""
    authority.misbehave = always(FAULTS[fault])
    began = time.monotonic()
    with pytest.raises(Unreachable) as slow:
        with_client(authority, AsyncClient.heartbeat, timeout_seconds=0.3)
    assert slow.value.kind is NoAnswerKind.TIMEOUT and time.monotonic() - began < SLACK


def test_nobody_listening_is_said_at_once() -> None:
    with pytest.raises(Unreachable) as refused:
        on_a_loop(AsyncClient("http://127.0.0.1:1", "key", agent_id="a", timeout_seconds=0.3).heartbeat())
    assert refused.value.kind is NoAnswerKind.REFUSED


def test_a_retry_repeats_the_key_and_gets_the_recorded_decision(authority: FakeAuthority) -> None:
    seen: list[str] = []

    def once(exchange: Any) -> bool:
        seen.append(exchange.body["idempotency_key"])
        if len(seen) == 1:
            exchange.answer(503, {"decision": "DENY"})
        return len(seen) == 1

    authority.misbehave = once
    answer = with_client(authority, ask)
    assert answer.may_start and seen == ["k", "k"] and len(authority.operations) == 1


@pytest.mark.parametrize(("retries", "keeps"), [(1, False), (1, True), (0, True)])
def test_an_error_after_a_lost_try_says_that_the_call_may_have_arrived(retries: int, keeps: bool) -> None:
    async def use(client: AsyncClient) -> list[bool]:
        if keeps:
            assert await client.heartbeat() == "OK"
        authority.misbehave = always(lambda exchange: (authority.stop_listening(), exchange.hang_up())[1])
        found = []
        for _ in range(2):
            with pytest.raises(Unreachable) as refused:
                await ask(client)
            found.append(refused.value.may_have_arrived)
        return found

    with FakeAuthority().running() as authority:
        assert with_client(authority, use, timeout_seconds=60, retries=retries) == [True, False]


def test_a_refusal_after_a_connection_that_broke_says_so_too(authority: FakeAuthority) -> None:
    async def use(client: AsyncClient) -> bool:
        assert await client.heartbeat() == "OK"
        ways: Iterator[Callable[[Any], None]] = iter([Exchange.hang_up])
        authority.misbehave = always(lambda exchange: next(ways, refuse)(exchange))
        with pytest.raises(Rejected) as refused:
            await ask(client)
        return refused.value.may_have_arrived

    def refuse(exchange: Exchange) -> None:
        exchange.problem(401, "unauthenticated")

    assert with_client(authority, use, timeout_seconds=60, retries=0) is True


def test_guard_start_report_and_check_are_the_calls_of_the_client(authority: FakeAuthority) -> None:
    async def use(client: AsyncClient) -> None:
        answer = await ask(client)
        first = await client.start(answer, "7a1e0000-0000-4000-8000-000000000001")
        assert (await client.start(answer, "7a1e0000-0000-4000-8000-000000000001")).duplicate and not first.duplicate
        report = {"idempotency_key": "k", "action": "refund.create", "outcome": "success"}
        receipt = await client.report(**report, permit_token=answer.permit_token)
        assert receipt.receipt_event_id
        assert (await client.check(action="refund.create", params=params(1))).decision == "ALLOW"
        assert await client.heartbeat() == "OK"
        with pytest.raises(KeyConflict) as raised:
            await ask(client, value=2)
        assert raised.value.recorded_params == params(1)

    with_client(authority, use)


class Listening:
    """A server that says OK to everything; its connections, and of them those that a client closed."""

    def __init__(self) -> None:
        self.opened = self.closed = 0
        self._ready, self._url, self._loop = threading.Event(), "", asyncio.new_event_loop()
        self._all_closed = threading.Condition()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened += 1
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(
                    b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 15\r\n\r\n{"status":"OK"}'
                )
        writer.transport.abort()
        with self._all_closed:
            self.closed += 1
            self._all_closed.notify_all()

    def wait_until_closed(self) -> None:
        """Until every connection is closed. Fails after a minute."""
        with self._all_closed:
            assert self._all_closed.wait_for(lambda: self.closed == self.opened, 60)

    @contextlib.contextmanager
    def running(self) -> Iterator[str]:
        """Its address."""

        async def serve() -> None:
            server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
            self._url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            self._ready.set()
            async with server:
                await self._ended

        self._ended = self._loop.create_future()
        thread = threading.Thread(target=self._loop.run_until_complete, args=(serve(),))
        thread.start()
        assert self._ready.wait(60)
        yield self._url
        self._loop.call_soon_threadsafe(self._ended.set_result, None)
        thread.join(60)
        self._loop.close()


async def _ends_with_its_loop(url: str, seen: Listening) -> None:
    _left_open.append(AsyncClient(url, "key", agent_id="a"))
    for _ in range(3):
        await _left_open[-1].heartbeat()
    assert seen.closed == 0


async def _is_dropped(url: str, seen: Listening) -> None:
    client = AsyncClient(url, "key", agent_id="a")
    for _ in range(3):
        await client.heartbeat()
    assert seen.closed == 0
    del client
    gc.collect()
    await asyncio.to_thread(seen.wait_until_closed)


async def _is_closed(url: str, seen: Listening) -> None:
    async with AsyncClient(url, "key", agent_id="a") as client:
        for _ in range(3):
            await client.heartbeat()
        assert seen.closed == 0
    await asyncio.to_thread(seen.wait_until_closed)


_left_open: list[AsyncClient] = []


@pytest.mark.parametrize("use", [_ends_with_its_loop, _is_dropped, _is_closed])
def test_one_connection_serves_all_calls_and_ends_with_the_client_or_its_loop(use: Any) -> None:
    seen = Listening()
    with seen.running() as url:
        on_a_loop(use(url, seen))
        seen.wait_until_closed()
    assert seen.opened == 1


def test_many_calls_at_once_are_each_answered_with_their_own(authority: FakeAuthority) -> None:
    async def use(client: AsyncClient) -> list[GuardAnswer]:
        return await asyncio.gather(*(ask(client, key=f"k{number}") for number in range(40)))

    found = with_client(authority, use, timeout_seconds=60)
    assert [one.idempotency_key for one in found] == [f"k{number}" for number in range(40)]
    assert len({one.operation_id for one in found}) == 40


def test_a_client_may_be_used_on_one_loop_after_another(authority: FakeAuthority) -> None:
    client = AsyncClient(authority.url, "key", agent_id="a")
    assert [on_a_loop(client.heartbeat()) for _ in range(2)] == ["OK", "OK"]
    assert len(client._transport._pools) == 1, "what an ended loop had is forgotten"


class LoopForgottenTwice(asyncio.SelectorEventLoop):
    """A loop of which, once it is closed, `meanwhile` is called by whoever first asks whether it is."""

    meanwhile: Callable[[], Any] | None = None

    def is_closed(self) -> bool:
        call, self.meanwhile = self.meanwhile, None
        if call is not None:
            call()
        return super().is_closed()


def test_loops_of_several_threads_that_forget_one_that_ended_do_not_disturb_each_other(
    authority: FakeAuthority,
) -> None:
    """The finding: with a loop for each request in its thread, the call of one of two raised `KeyError` or `RuntimeError`."""
    client = AsyncClient(authority.url, "key", agent_id="a")
    ended = LoopForgottenTwice()

    def use_and_end() -> None:
        with asyncio.Runner(loop_factory=lambda: ended) as runner:
            assert runner.run(client.heartbeat()) == "OK"

    with ThreadPoolExecutor(1) as threads:
        threads.submit(use_and_end).result()
    others: list[str] = []
    ended.meanwhile = lambda: others.append(on_a_loop(client.heartbeat()))
    assert [on_a_loop(client.heartbeat()), *others] == ["OK", "OK"]


def test_who_got_no_connection_in_time_has_sent_nothing(
    authority: FakeAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*args: Any, **options: Any) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio, "open_connection", never)
    with pytest.raises(Unreachable) as late:
        with_client(authority, ask, timeout_seconds=0.1)
    assert (late.value.kind, late.value.may_have_arrived) == (NoAnswerKind.TIMEOUT, False)


def test_an_address_whose_machine_is_gone_does_not_keep_a_call_from_the_next(
    authority: FakeAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect, port = asyncio.open_connection, int(authority.url.rpartition(":")[2])

    async def two(host: str, port: int) -> list[Any]:
        return [(0, 0, 0, "", (host, port)) for host in ("192.0.2.1", "127.0.0.1")]

    async def only_the_second(host: str, *rest: Any, **options: Any) -> Any:
        if host == "192.0.2.1":
            await asyncio.Event().wait()
        return await connect(host, *rest, **options)

    monkeypatch.setattr(async_transport, "_look_up", two)
    monkeypatch.setattr(asyncio, "open_connection", only_the_second)

    async def use() -> str:
        async with AsyncClient(f"http://authority.test:{port}", "key", agent_id="a", timeout_seconds=6) as client:
            return await client.heartbeat()

    assert on_a_loop(use()) == "OK"


def test_a_link_local_address_is_dialled_with_its_scope(
    authority: FakeAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the other client does. The finding: the scope was dropped, and the system refused to connect."""
    connect, port, dialled = asyncio.open_connection, int(authority.url.rpartition(":")[2]), []

    async def link_local(host: str, port: int) -> list[Any]:
        return [(0, 0, 0, "", ("fe80::1", port, 0, 7))]

    async def recorded(host: str, *rest: Any, **options: Any) -> Any:
        dialled.append(host)
        return await connect("127.0.0.1", *rest, **options)

    monkeypatch.setattr(async_transport, "_look_up", link_local)
    monkeypatch.setattr(asyncio, "open_connection", recorded)

    async def use() -> str:
        async with AsyncClient(f"http://authority.test:{port}", "key", agent_id="a") as client:
            return await client.heartbeat()

    assert on_a_loop(use()) == "OK"
    assert dialled == ["fe80::1%7"]


def test_a_name_is_looked_up_while_all_of_the_loops_threads_are_taken(authority: FakeAuthority) -> None:
    """The finding: while an agent's tools held the loop's threads, what came of another one could not be reported in time."""

    async def use() -> str:
        go_on = threading.Event()
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        tool = loop.run_in_executor(None, lambda: go_on.wait(60))
        try:
            url = authority.url.replace("127.0.0.1", "localhost")
            async with AsyncClient(url, "key", agent_id="a", timeout_seconds=30) as client:
                return await client.heartbeat()
        finally:
            go_on.set()
            await tool

    assert "127.0.0.1" in authority.url and on_a_loop(use()) == "OK"


def test_a_closed_client_asks_nothing_more(authority: FakeAuthority) -> None:
    async def use() -> None:
        async with AsyncClient(authority.url, "key", agent_id="a") as client:
            pass
        await client.heartbeat()

    with pytest.raises(Unreachable) as closed:
        on_a_loop(use())
    assert closed.value.kind is NoAnswerKind.CLOSED and authority.calls == []


def test_a_call_that_connects_while_the_client_is_closed_is_not_sent(
    authority: FakeAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def use() -> None:
        connected, go_on = asyncio.Event(), asyncio.Event()
        real = asyncio.open_connection

        async def slow(*args: Any, **options: Any) -> Any:
            link = await real(*args, **options)
            connected.set()
            await go_on.wait()
            return link

        monkeypatch.setattr(asyncio, "open_connection", slow)
        client = AsyncClient(authority.url, "key", agent_id="a")
        call = asyncio.ensure_future(client.heartbeat())
        await connected.wait()
        await client.close()
        go_on.set()
        await call

    with pytest.raises(Unreachable) as closed:
        on_a_loop(use())
    assert closed.value.kind is NoAnswerKind.CLOSED and authority.calls == []


def test_the_block_is_entered_only_with_a_started_permit_and_its_outcome_is_reported(authority: FakeAuthority) -> None:
    async def use(client: AsyncClient) -> None:
        async with guarded(client, "refund.create", params=params(1), idempotency_key="a") as answer:
            assert authority.operations["a"].start_id and answer.may_start
        assert authority.operations["a"].outcome == "success"
        with pytest.raises(ZeroDivisionError):
            async with guarded(client, "refund.create", params=params(1), idempotency_key="b"):
                raise ZeroDivisionError
        assert authority.operations["b"].outcome == "error"
        for key, outcome in (("a", "success"), ("b", "error")):
            with pytest.raises(AlreadyStarted) as again:
                async with guarded(client, "refund.create", params=params(1), idempotency_key=key):
                    raise AssertionError("entered twice")
            assert again.value.outcome == outcome
        with pytest.raises(ActionDenied) as denied:
            async with guarded(client, "refund.create", params=params(5000), idempotency_key="c"):
                raise AssertionError("entered")
        assert denied.value.reason

    with_client(authority, use, timeout_seconds=60)


def test_a_cancelled_block_whose_thread_goes_on_is_not_reported_as_over(
    authority: FakeAuthority, caplog: pytest.LogCaptureFixture
) -> None:
    may_end, paid = threading.Event(), threading.Event()

    def pay() -> None:
        may_end.wait(30)
        paid.set()

    async def use(client: AsyncClient) -> None:
        entered = asyncio.Event()

        async def block() -> None:
            async with guarded(client, "refund.create", params=params(1), idempotency_key="a"):
                entered.set()
                await asyncio.to_thread(pay)

        task = asyncio.create_task(block())
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert authority.operations["a"].start_id and authority.operations["a"].outcome is None and not paid.is_set()
        may_end.set()
        with pytest.raises(AlreadyStarted) as again:
            async with guarded(client, "refund.create", params=params(1), idempotency_key="a"):
                raise AssertionError("entered twice")
        assert again.value.outcome is None

    with_client(authority, use, timeout_seconds=60)
    assert paid.wait(30) and authority.operations["a"].outcome is None
    assert "the outcome of a was not reported: CancelledError" in caplog.text


def test_a_block_is_not_entered_when_it_is_cancelled_while_its_start_is_answered(
    authority: FakeAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered = []

    async def use(client: AsyncClient) -> None:
        answered = async_transport._send_and_receive

        async def cancelled_with_it(link: Any, request: bytes) -> Any:
            found = await answered(link, request)
            if b"/guard/start" in request:
                task.cancel()
            return found

        monkeypatch.setattr(async_transport, "_send_and_receive", cancelled_with_it)

        async def block() -> None:
            async with guarded(client, "refund.create", params=params(1), idempotency_key="a"):
                entered.append(True)

        task = asyncio.create_task(block())
        with pytest.raises(asyncio.CancelledError):
            await task

    with_client(authority, use, timeout_seconds=60)
    assert not entered and authority.operations["a"].start_id and authority.operations["a"].outcome is None


@pytest.mark.parametrize("within", [async_transport._within, async_transport._within_by_timer])
def test_a_wait_ends_with_its_result_its_time_or_its_cancellation(within: Any) -> None:
    async def given() -> str:
        await asyncio.sleep(0)
        return "done"

    async def use() -> None:
        assert await within(30, given()) == "done"
        with pytest.raises(TimeoutError):
            await within(0.01, asyncio.Event().wait())
        task = asyncio.create_task(within(30, asyncio.Event().wait()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await within(30, given()) == "done", "no timer is left"

    on_a_loop(use())


def test_a_wait_that_is_over_is_no_answer_on_python_3_10_too(
    authority: FakeAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There asyncio's own error is another class than the builtin one."""

    class OldTimeoutError(Exception):
        pass

    async def never(link: Any, request: bytes) -> Any:
        await asyncio.Event().wait()

    async def use(client: AsyncClient) -> None:
        monkeypatch.setattr(async_transport, "_within", async_transport._within_by_timer)
        monkeypatch.setattr(async_transport, "_send_and_receive", never)
        monkeypatch.setattr(asyncio, "TimeoutError", OldTimeoutError)
        with pytest.raises(Unreachable) as met:
            await client.key()
        assert met.value.kind is NoAnswerKind.TIMEOUT

    with_client(authority, use, timeout_seconds=0.05, retries=0)


def test_as_a_decorator_each_call_is_one_operation(authority: FakeAuthority) -> None:
    async def use(client: AsyncClient) -> None:
        @guarded(client, "refund.create", params=params, idempotency_key=lambda value: f"refund:{value}")
        async def refund(value: int) -> int:
            return value

        assert [await refund(1), await refund(2)] == [1, 2]
        with pytest.raises(AlreadyStarted):
            await refund(1)
        assert refund.__name__ == "refund"

    with_client(authority, use, timeout_seconds=60)
    assert set(authority.operations) == {"refund:1", "refund:2"}


def test_waiting_asks_the_authority_again_and_ends_at_its_time(authority: FakeAuthority) -> None:
    async def use(client: AsyncClient) -> None:
        waiting = await ask(client, value=400)
        assert waiting.approval_id
        with pytest.raises(ApprovalPending):
            await client.wait_for_approval(waiting.approval_id, timeout_seconds=0.05)
        looked = len(authority.calls)

        async def decided() -> None:
            while len(authority.calls) < looked + 2:
                await asyncio.sleep(0.01)
            authority.approve("k")

        deciding = asyncio.create_task(decided())
        view = await client.wait_for_approval(waiting.approval_id, timeout_seconds=30, poll_seconds=0.02)
        await deciding
        assert view.status == "approved" and (await ask(client, value=400)).may_start

    with_client(authority, use, timeout_seconds=60)


def test_waiting_survives_silence_and_can_be_cancelled(authority: FakeAuthority) -> None:
    async def use(client: AsyncClient) -> None:
        waiting = await ask(client, value=400)
        authority.misbehave = always(FAULTS["500"])
        with pytest.raises(Unreachable):
            await client.wait_for_approval(waiting.approval_id or "", timeout_seconds=0.05)
        looked = len(authority.calls)
        task = asyncio.create_task(client.wait_for_approval(waiting.approval_id or "", timeout_seconds=60))
        while len(authority.calls) == looked:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        looked = len(authority.calls)

        async def resumed_answers() -> None:
            while len(authority.calls) < looked + 2:
                await asyncio.sleep(0.01)
            authority.approve("k")
            authority.misbehave = lambda exchange: False

        answering = asyncio.create_task(resumed_answers())
        view = await client.wait_for_approval(waiting.approval_id or "", timeout_seconds=30, poll_seconds=0.02)
        await answering
        assert view.status == "approved"

    with_client(authority, use, timeout_seconds=60, retries=0)


@pytest.mark.parametrize("status", ["approved", "rejected"])
def test_a_guarded_block_may_wait_for_a_person(authority: FakeAuthority, status: str) -> None:
    def decide_when_looked_at(exchange: Any) -> bool:
        if exchange.path.endswith(authority.operations["k"].approval_id) if "k" in authority.operations else False:
            authority.approve("k", status)
        return False

    authority.misbehave = decide_when_looked_at
    entered = []
    with Client(authority.url, "key", agent_id="agent") as client:
        try:
            with guarded(client, "refund.create", params=params(400), idempotency_key="k", wait_seconds=30):
                entered.append(1)
        except ActionDenied:
            assert status == "rejected"
    assert bool(entered) is (status == "approved") and authority.calls.count("action/guard/start") == len(entered)


def test_no_answer_prints_its_token(authority: FakeAuthority) -> None:
    answer = with_client(authority, ask)
    assert answer.permit_token and answer.permit_token not in f"{answer!r} {answer!s}"
