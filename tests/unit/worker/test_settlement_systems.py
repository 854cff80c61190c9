"""Every settlement system keeps one contract; an outside one keeps it whatever its server does."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from sentinel.platform.outbound import client
from sentinel.platform.settings import UnsafeConfiguration
from tests.support.effects_server import EffectsServer
from tests.support.ports import free_port
from tests.support.recording_server import problem
from tests.support.scripted_server import SLACK, Asked, faults, took
from worker.gates.simulated_systems import NAMES, serve_simulated_systems
from worker.refunds.rows import LedgerRow
from worker.refunds.settings import WorkerSettings, read_settings
from worker.settlement import EffectRefused, NoAnswer, Settled, Systems, UnknownSystem, system_names
from worker.settlement.effects import compensate, try_once
from worker.settlement.registry import HttpSystem

pytestmark = pytest.mark.slow

INSIDE = ("simulated_refund", "private_refund", "coupon")
OUTSIDE = ("price_difference", "platform_backend", "ticket", "ticket_then_platform")
TIMEOUT, PATIENT = 0.4, 60.0
"""Seconds for a server that does not answer, and for one that does: a busy machine may need a second for its first call."""
ROW = LedgerRow(
    **dict.fromkeys(LedgerRow.__struct_fields__)
    | {"ledger_entry_id": "lge_1", "refund_id": "rf_1", "amount_minor": 980, "currency": "USD", "order_ref": "ord_1"}
)
# A well-formed 201 that says done is the truth here, so it is no fault.
FAULTS = {name: script for name, (script, _) in faults(EffectsServer.yes()).items() if name != "201"} | {
    "not done": lambda asked: asked.say({"status": "pending", "reference": "S-1"}),
    "done without a name": lambda asked: asked.say({"status": "done"}),
    "done by an empty name": lambda asked: asked.say({"status": "done", "reference": " \n"}),
    "not found as HTML": lambda asked: asked.answer(404, b"<h1>404</h1>", "text/html"),
    "not found as JSON": lambda asked: asked.answer(404, b"{}"),
    "a problem that is no JSON": lambda asked: asked.answer(422, b"no", "application/problem+json"),
    **{f"problem {status}": problem(status) for status in (401, 403, 408, 409, 421, 423, 424, 425, 429, 500, 503)},
}
"""Every answer that says nothing about the effect."""


@pytest.fixture
def server() -> Iterator[EffectsServer]:
    with EffectsServer().canned() as canned:
        yield canned


@pytest.fixture
def wire() -> Iterator[EffectsServer]:
    """The same behind a real socket: for what breaks on the way."""
    with EffectsServer().running() as running:
        yield running


def http_system(server: EffectsServer, timeout: float = PATIENT, **over: Any) -> HttpSystem:
    return HttpSystem("platform_backend", server.url + "/", "k-1", timeout, **over)


@pytest.fixture(params=[*INSIDE, "platform_backend"])
def system(request: pytest.FixtureRequest, server: EffectsServer) -> Any:
    if request.param in INSIDE:
        return Systems.from_settings(WorkerSettings(api_key="key")).get(request.param)
    return http_system(server)


def test_a_system_settles_a_reference_once_however_often_it_is_asked(system: Any, server: EffectsServer) -> None:
    reference, other = uuid.uuid4(), uuid.uuid4()
    answers = [system.settle(ROW, reference) for _ in range(3)]
    assert isinstance(answers[0], Settled) and len(set(answers)) == 1
    assert system.settle(ROW, other) != answers[0]
    assert set(server.done.values()) <= {1}


def test_a_system_is_ready_and_has_a_name_and_says_whether_it_moves_money(system: Any) -> None:
    assert system.is_ready() is True
    assert system.name in system_names() and isinstance(system.moves_money, bool)


def test_a_look_up_never_says_done_before_it_is(system: Any) -> None:
    assert not isinstance(system.look_up(uuid.uuid4()), Settled)


def test_a_look_up_finds_what_was_done_and_not_what_was_taken_back(server: EffectsServer) -> None:
    system, reference = http_system(server), uuid.uuid4()
    assert system.look_up(reference) == EffectRefused("not there")
    settled = system.settle(ROW, reference)
    assert system.look_up(reference) == settled
    assert isinstance(system.compensate(reference), Settled)
    assert system.look_up(reference) == EffectRefused("not there")


def test_only_what_gives_money_back_moves_money() -> None:
    systems = Systems.from_settings(WorkerSettings())
    assert {name for name in systems.names() if not systems.get(name).moves_money} == {"coupon", "ticket"}


def test_a_coupon_has_a_code_of_its_own_per_reference() -> None:
    coupon = Systems.from_settings(WorkerSettings(api_key="key")).get("coupon")
    codes = {coupon.settle(ROW, uuid.uuid4()).reference for _ in range(200)}  # type: ignore[union-attr]
    assert len(codes) == 200 and all(len(code) == 23 and code.startswith("CPN-") for code in codes)


def test_a_coupons_code_is_reckoned_by_nobody_without_the_workers_key() -> None:
    """A start id is made of the tenant's id and the row's, which others know; the public board has the secrets of confirm links too."""

    def code(api_key: str, confirm_secret: str) -> str:
        settings = WorkerSettings(api_key=api_key, confirm_secrets=(confirm_secret,))
        return Systems.from_settings(settings).get("coupon").settle(ROW, reference).reference  # type: ignore[union-attr]

    reference = uuid.uuid4()
    assert code("one", "a" * 32) == code("one", "b" * 32) != code("two", "a" * 32)


def test_without_the_workers_key_there_is_no_coupon() -> None:
    coupon = Systems.from_settings(WorkerSettings(confirm_secrets=("a" * 32,))).get("coupon")
    assert not coupon.is_ready()
    assert isinstance(coupon.settle(ROW, uuid.uuid4()), NoAnswer)


def test_the_system_is_told_the_effect_and_nothing_of_the_customer(server: EffectsServer) -> None:
    reference = uuid.uuid4()
    http_system(server).settle(ROW, reference)
    asked = server.http.asked[-1]
    assert (asked.method, asked.path) == ("POST", "/effects")
    assert asked.headers["idempotency-key"] == str(reference) and asked.headers["authorization"] == "Bearer k-1"
    assert server.bodies == [{
        "kind": "platform_backend", "reference": str(reference), "ledger_entry_id": "lge_1", "refund_id": "rf_1",
        "order_ref": "ord_1", "amount": {"value": "9.80", "currency": "USD"},
    }]  # fmt: skip


@pytest.mark.parametrize("does_it", [True, False], ids=["done", "not done"])
@pytest.mark.parametrize("fault", FAULTS)
def test_an_unusable_answer_to_a_settlement_is_no_answer(wire: EffectsServer, fault: str, does_it: bool) -> None:
    wire.forever = ("POST", does_it, FAULTS[fault])
    reference = uuid.uuid4()
    # On a busy machine a call may be given up before the wire has it, or while it does it.
    for _ in range(20):
        answer, seconds = took(lambda: http_system(wire, TIMEOUT).settle(ROW, reference))
        assert isinstance(answer, NoAnswer)
        assert seconds < TIMEOUT + SLACK
        for _ in range(50):
            if wire.http.asked and sum(wire.done.values()) == does_it:
                return
            time.sleep(0.02)
    pytest.fail(f"the wire did {sum(wire.done.values())} of it")


# They wait for time limits, beside the rest of this file.
@pytest.mark.xdist_group("unusable answers to look-ups")
@pytest.mark.parametrize("fault", FAULTS)
def test_an_unusable_answer_to_a_look_up_or_a_compensation_is_no_answer(wire: EffectsServer, fault: str) -> None:
    system, reference = http_system(wire, TIMEOUT), uuid.uuid4()
    wire.faults.append(("GET", False, FAULTS[fault]))
    assert isinstance(system.look_up(reference), NoAnswer)
    wire.faults.clear()  # on a busy machine the look-up may have been given up before it arrived
    wire.faults.append(("DELETE", False, FAULTS[fault]))
    assert isinstance(system.compensate(reference), NoAnswer)


@pytest.mark.parametrize("status", [400, 402, 410, 422])
def test_a_problem_about_the_effect_is_a_refusal(server: EffectsServer, status: int) -> None:
    server.faults.append(("POST", False, problem(status, "already\nover\x00" + "x" * 1000)))
    answer = http_system(server).settle(ROW, uuid.uuid4())
    assert isinstance(answer, EffectRefused)
    assert answer.reason.isprintable() and len(answer.reason) <= 210


def test_a_server_that_is_not_there_gives_no_answer_and_is_not_ready() -> None:
    system = HttpSystem("ticket", f"http://127.0.0.1:{free_port()}", "k", TIMEOUT)
    assert system.is_ready() is False
    assert all(isinstance(answer, NoAnswer) for answer in (
        system.settle(ROW, uuid.uuid4()), system.look_up(uuid.uuid4()), system.compensate(uuid.uuid4())
    ))  # fmt: skip


def test_a_system_without_an_address_is_not_ready_and_asks_nobody() -> None:
    systems = Systems.from_settings(WorkerSettings(ticket_key="k"))
    for name in OUTSIDE:
        assert systems.get(name).is_ready() is False
        assert isinstance(systems.get(name).settle(ROW, uuid.uuid4()), NoAnswer)
        assert isinstance(systems.get(name).look_up(uuid.uuid4()), NoAnswer)


def test_outside_systems_are_not_ready_while_nothing_could_be_recorded(server: EffectsServer) -> None:
    systems = Systems.from_settings(WorkerSettings(ticket_url=server.url, ticket_key="k"))
    assert systems.adapters["ticket"].is_ready() is True
    assert systems.get("ticket").is_ready() is False


def test_readiness_is_asked_again_after_five_seconds_and_not_before(server: EffectsServer) -> None:
    clock = [100.0]
    system = http_system(server, now=lambda: clock[0])
    assert [system.is_ready() for _ in range(3)] == [True] * 3
    assert len(server.http.asked) == 1
    server.forever = ("GET", False, problem(503))
    clock[0] += 5.1
    assert system.is_ready() is False


def test_a_system_that_does_not_say_in_time_that_it_is_ready_is_not(
    wire: EffectsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "READY_WAIT_SECONDS", 0.05)
    given_up = threading.Event()

    def answer(asked: Asked) -> None:
        given_up.wait(10)
        asked.answer(200, b"{}")  # ready, but too late: without the limit it would be believed

    wire.forever = ("GET", False, answer)
    try:
        assert http_system(wire).is_ready() is False
    finally:
        given_up.set()


def test_a_reply_that_was_lost_is_found_by_looking_and_one_that_never_was_is_left_open(wire: EffectsServer) -> None:
    system, done, not_done = http_system(wire), uuid.uuid4(), uuid.uuid4()
    wire.faults.append(("POST", True, FAULTS["resets"]))
    assert isinstance(try_once(system, ROW, done), Settled)
    wire.faults.append(("POST", False, FAULTS["resets"]))
    assert isinstance(try_once(system, ROW, not_done), NoAnswer)


def test_a_refusal_because_it_was_done_before_is_told_from_a_real_one(server: EffectsServer) -> None:
    system, reference = http_system(server), uuid.uuid4()
    system.settle(ROW, reference)
    server.faults.append(("POST", False, problem(422, "already refunded")))
    assert isinstance(try_once(system, ROW, reference), Settled)
    server.faults.append(("POST", False, problem(422, "closed account")))
    assert isinstance(try_once(system, ROW, uuid.uuid4()), EffectRefused)


def test_an_adapter_that_raises_is_no_answer() -> None:
    class Broken:
        name, moves_money = "broken", True

        def is_ready(self) -> bool:
            return True

        def settle(self, row: LedgerRow, reference: uuid.UUID) -> Any:
            raise ValueError("secret words")

        look_up = compensate = lambda self, reference: 1 / 0

    answer = try_once(Broken(), ROW, uuid.uuid4())  # type: ignore[arg-type]
    assert answer == NoAnswer("its adapter failed: ValueError")
    assert compensate(Broken(), uuid.uuid4()) == NoAnswer("its adapter failed: ZeroDivisionError")  # type: ignore[arg-type]


def test_an_unknown_system_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UnknownSystem, match="'platform_backend'"):
        Systems.from_settings(WorkerSettings()).get("platform_backed")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("WORKER_TICKET_URL", "ftp://x", "WORKER_TICKET_URL must look like"),
        ("WORKER_PLATFORM_URL", "https://p.test", "WORKER_PLATFORM_KEY go together"),
        ("WORKER_PRICE_DIFFERENCE_KEY", "a b", "WORKER_PRICE_DIFFERENCE_KEY must be printable"),
        ("WORKER_SETTLEMENT_TIMEOUT_SECONDS", "0", "WORKER_SETTLEMENT_TIMEOUT_SECONDS: Must be greater than 0"),
        ("WORKER_SETTLEMENT_TIMEOUT_SECONDS", "soon", "WORKER_SETTLEMENT_TIMEOUT_SECONDS: Not a valid number"),
    ],
)
def test_a_wrong_setting_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(UnsafeConfiguration, match=said):
        read_settings(needs_authority=False)


def test_settings_make_a_system_ready(monkeypatch: pytest.MonkeyPatch, server: EffectsServer) -> None:
    monkeypatch.setenv("WORKER_PLATFORM_URL", server.url)
    monkeypatch.setenv("WORKER_PLATFORM_KEY", "k")
    systems = Systems.from_settings(read_settings(needs_authority=False))
    assert systems.adapters["platform_backend"].is_ready() is True
    assert systems.adapters["ticket"].is_ready() is False


def test_a_launch_gate_simulates_every_system_that_speaks_the_protocol_and_knows_which_move_money() -> None:
    with serve_simulated_systems() as simulated:
        systems = Systems.from_settings(WorkerSettings(**simulated.settings()))  # type: ignore[arg-type]
        spoken = {name: each for name, each in systems.adapters.items() if isinstance(each, HttpSystem)}
        assert {*spoken, "model_critic"} == set(NAMES)
        answers = {name: each.settle(ROW, uuid.uuid4()) for name, each in spoken.items()}
        moved = {name for name, _ in simulated.money()}
    assert all(isinstance(answer, Settled) for answer in answers.values()), answers
    assert moved == {name for name, each in spoken.items() if each.moves_money}


def test_amounts_without_decimals_go_out_exactly(server: EffectsServer) -> None:
    http_system(server).settle(replace(ROW, amount_minor=980, currency="JPY"), uuid.uuid4())
    assert json.loads(json.dumps(server.bodies[0]["amount"])) == {"value": 980, "currency": "JPY"}
