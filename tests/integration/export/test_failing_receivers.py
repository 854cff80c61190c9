"""Receivers that fail, redirect, dawdle, refuse for good or lie inside: what is sent again, given up, or never sent at all."""

from __future__ import annotations

import dataclasses
import itertools
import threading
import uuid
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from sentinel.authority.actor import local_administrator
from sentinel.authority.webhooks import (
    disable_webhook,
    discard_dead_letters,
    enable_webhook,
    list_dead_letters,
    list_endpoints,
    resend,
)
from sentinel.core.errors import Conflict, NotFound
from sentinel.export import receivers
from sentinel.export import sender as sender_module
from sentinel.export.build import make_sender
from sentinel.export.cloud_events import FeedEvent
from sentinel.export.deliveries import BACKOFF, Deliveries
from sentinel.export.settings import PRIVATE_CLIENT
from sentinel.platform.outbound.failures import FAULTS as WORDS
from tests.support.event_receiver import EventReceiver, answers
from tests.support.export_fixtures import Export, exporting
from tests.support.fixtures import Fixtures
from tests.support.ledger_fixtures import wait_until
from tests.support.scripted_server import Asked


@pytest.fixture
def export(fixtures: Fixtures) -> Iterator[Export]:
    with exporting(fixtures) as made:
        yield made


def endless(asked: Asked) -> None:
    asked.raw(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n")
    while not asked.stop.is_set():
        asked.raw(b"x" * 65536)


FAULTS = {
    "http_500": answers(500), "http_429": answers(429, Retry_After="1"), "http_404": answers(404),
    "http_302": answers(302, Location="http://127.0.0.1:9/elsewhere"), "http_307": answers(307, Location="http://169.254.169.254/"),
    "broken": lambda asked: asked.raw(b"HTTP/1.1 2"), "too_large": endless, "timeout": lambda asked: asked.drip(b"HTTP/1.1 200 OK\r\n" * 99),
}  # fmt: skip


@pytest.mark.parametrize("error", FAULTS)
def test_what_a_receiver_does_not_take_is_sent_again_before_anything_behind_it(export: Export, error: str) -> None:
    first = export.fixtures.guard()["decision_event_id"]
    export.receiver.faults[:] = [FAULTS[error]]
    patient = export.sender
    if error == "timeout":
        export.sender = make_sender(dataclasses.replace(export.settings, timeout_seconds=2.0), export.pool)
    export.send()
    export.sender = patient
    assert export.row("last_error, attempts") == (error, 1)
    second = export.fixtures.guard()["decision_event_id"]
    export.send()
    assert export.receiver.ids == [], "not before its pause is over"
    export.due_now()
    export.send()
    assert export.receiver.ids == [first, second]
    assert export.row("attempts, last_error, first_failed_at") == (0, None, None)
    assert len({asked.headers["webhook-id"] for asked in export.receiver.http.asked}) == 2, "the same id at every try"


def test_pauses_grow_and_end_at_an_hour() -> None:
    pauses = [BACKOFF.pause_seconds(attempts) for attempts in range(15)]
    assert pauses[:4] == [5, 10, 20, 40] and pauses[-1] == 3600
    assert all(one <= later for one, later in itertools.pairwise(pauses))
    assert BACKOFF.pause_seconds(0, 1.0) == 6.25


@pytest.mark.parametrize("at_once", [1, 200])
def test_an_event_that_cannot_be_read_fails_alone_and_ends_as_a_dead_letter(
    export: Export, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    before, bad, behind = (export.fixtures.guard()["decision_event_id"] for _ in range(3))
    real, sent = receivers.messages_of, receivers.WebhookReceiver.send

    def read(event: FeedEvent, types: Sequence[str]) -> Any:
        if str(event.event_id) == bad:
            raise ValueError("no body that we know")
        return real(event, types)

    def whole(self: Any, endpoint: Any, events: Sequence[FeedEvent]) -> str | None:
        for event in events:
            read(event, endpoint.event_types)
        return sent(self, endpoint, events)

    for module in (receivers, sender_module):
        monkeypatch.setattr(module, "messages_of", read)
    monkeypatch.setattr(receivers.WebhookReceiver, "send", whole)
    (receiver,) = {
        id(one): one for one in export.sender._receivers.values() if isinstance(one, receivers.WebhookReceiver)
    }.values()
    object.__setattr__(receiver, "at_once", at_once)
    export.send()
    assert export.receiver.ids == [before]
    assert export.row("last_error, attempts") == ("unreadable_event", 1)
    export.let_hours_pass(13)
    for _ in range(2):
        export.due_now()
        export.send()
    assert export.receiver.ids == [before, behind]
    (letter,) = list_dead_letters(export.fixtures.console_pool, export.fixtures.tenant_id)
    assert (str(letter.event_id), letter.last_error) == (bad, "unreadable_event")
    actor = local_administrator(export.fixtures.tenant_id)
    assert resend(export.fixtures.console_pool, actor, export.endpoint_id) == 1
    export.send()
    (letter,) = list_dead_letters(export.fixtures.console_pool, export.fixtures.tenant_id)
    assert (letter.resend_asked_at, letter.attempts) == (None, 3)


def test_a_failing_receiver_holds_up_nobody_else(export: Export) -> None:
    with EventReceiver().running() as other:
        export.add(other)
        export.receiver.faults[:] = [answers(503)]
        wanted = export.fixtures.guard()["decision_event_id"]
        export.send()
        assert wanted in other.ids and export.receiver.ids == []


def test_a_receiver_that_is_always_behind_takes_turns_with_younger_ones(export: Export) -> None:
    with EventReceiver().running() as other:
        younger = export.add(other)
        export.fixtures.guard()
        export.fixtures.run_housekeeping()
        deliveries = Deliveries(export.pool, ["webhook"], lease_seconds=30, give_up_seconds=100)
        served = []
        for _ in range(4):  # turns that end before their receiver has everything
            claim = deliveries.claim()
            assert claim is not None
            served.append(claim.endpoint_id)
            deliveries.release(claim)
    assert served == [export.endpoint_id, younger] * 2


def test_receivers_are_served_at_once_after_the_clock_was_set_back(export: Export) -> None:
    """As after a failover to a server whose clock is right. The finding: each turn's end was ahead, so nothing was sent until then."""
    export.fixtures.admin.execute(
        "update sentinel.event_endpoints set next_attempt_at = next_attempt_at + interval '1 day',"
        " lease_until = lease_until + interval '1 day'"
    )
    wanted = export.fixtures.guard()["decision_event_id"]
    export.send()
    assert wanted in export.receiver.ids
    assert export.row("next_attempt_at <= clock_timestamp(), lease_until <= clock_timestamp()") == (True, True)


def test_a_slow_receiver_is_served_for_a_turn_before_the_next_one(
    export: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The finding: the turn's end was looked at between portions of 200 events, half an hour of a receiver that takes 9 s for each."""
    clock = [0.0]
    monkeypatch.setattr(sender_module, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    def slowly(asked: Asked) -> None:
        clock[0] += 9
        asked.answer(204, b"")

    with EventReceiver().running() as other:
        export.add(other)
        wanted = [export.fixtures.guard()["decision_event_id"] for _ in range(8)]
        export.fixtures.run_housekeeping()
        export.receiver.faults[:] = [slowly] * len(wanted)
        export.sender.round()
        assert 0 < len(export.receiver.http.asked) < 5 and other.ids == []
        export.sender.round()
        assert set(other.ids) >= set(wanted), "and then the next one"


def test_410_disables_a_webhook_until_an_administrator_enables_it(export: Export) -> None:
    first = export.fixtures.guard()["decision_event_id"]
    export.receiver.faults[:] = [answers(410)]
    export.send()
    assert export.row("disabled_reason") == ("gone",)
    second = export.fixtures.guard()["decision_event_id"]
    export.due_now()
    export.send()
    assert len(export.receiver.http.asked) == 1, "nothing more is sent"
    actor = local_administrator(export.fixtures.tenant_id)
    enable_webhook(export.fixtures.console_pool, actor, export.endpoint_id)
    export.send()
    assert [one for one in export.receiver.ids if one in (first, second)] == [first, second], (
        "it goes on where it stopped"
    )


DISABLED = """
select body::jsonb ->> 'endpoint_id', body::jsonb ->> 'by', body::jsonb ->> 'reason' from sentinel.events
where tenant_id = %s and kind = 'webhook_disabled'
"""


def test_a_webhook_that_its_own_410_disables_leaves_an_event(export: Export) -> None:
    export.fixtures.guard()
    export.receiver.faults[:] = [answers(410)]
    export.send()
    told = export.fixtures.admin.execute(DISABLED, [export.fixtures.tenant_id]).fetchall()
    assert told == [(str(export.endpoint_id), "sentinel", "gone")]
    again = "select sentinel.disable_gone_endpoint(%s, %s, %s)"
    assert export.fixtures.one(again, export.fixtures.tenant_id, export.endpoint_id, uuid.uuid4()) is False
    assert len(export.fixtures.admin.execute(DISABLED, [export.fixtures.tenant_id]).fetchall()) == 1, "once"


def test_a_dead_letter_that_is_answered_410_leaves_an_event(export: Export) -> None:
    fixtures = export.fixtures
    fail_for_too_long(export)
    export.due_now()
    export.send()
    (letter,) = list_dead_letters(fixtures.console_pool, fixtures.tenant_id)
    actor = local_administrator(fixtures.tenant_id)
    assert resend(fixtures.console_pool, actor, export.endpoint_id, letter.event_id) == 1
    export.receiver.faults[:] = [answers(410)]
    export.send()
    assert export.row("disabled_reason") == ("gone",)
    assert len(fixtures.admin.execute(DISABLED, [fixtures.tenant_id]).fetchall()) == 1


def fail_for_too_long(export: Export) -> str:
    """An event whose time is over at the next failure; its id."""
    made = export.fixtures.guard()["decision_event_id"]
    export.receiver.faults[:] = [answers(500), answers(500)]
    export.send()
    export.let_hours_pass(13)
    export.due_now()
    export.send()
    return str(made)


def test_what_is_not_taken_in_time_is_a_dead_letter_that_can_be_sent_again(export: Export) -> None:
    fixtures, pool = export.fixtures, export.fixtures.console_pool
    dead = fail_for_too_long(export)
    (letter,) = list_dead_letters(pool, fixtures.tenant_id)
    assert (str(letter.event_id), letter.attempts, letter.last_error, letter.event) == (dead, 2, "http_500", "decision")
    later = fixtures.guard()["decision_event_id"]
    export.due_now()
    export.send()
    assert export.receiver.ids == [later], "what is behind it goes on"
    actor = local_administrator(fixtures.tenant_id)
    export.receiver.faults[:] = [answers(500)]
    assert resend(pool, actor, export.endpoint_id, letter.event_id) == 1
    with pytest.raises(NotFound):
        resend(pool, actor, export.endpoint_id, letter.event_id)
    export.send()
    (still,) = list_dead_letters(pool, fixtures.tenant_id)
    assert (still.attempts, still.resend_asked_at) == (3, None), "one asking is one try"
    fixtures.admin.execute("update sentinel.dead_letters set lease_until = clock_timestamp()")
    assert resend(pool, actor, export.endpoint_id) == 1
    export.send()
    assert export.receiver.ids == [later, dead]
    assert list_dead_letters(pool, fixtures.tenant_id) == []


def two_dead_letters(export: Export) -> None:
    """The webhook has two dead letters, and a person asked to have both sent again."""
    export.receiver.faults[:] = [answers(500)] * 4
    for _ in range(2):
        export.fixtures.guard()
        export.due_now()
        export.send()
        export.let_hours_pass(13)
        export.due_now()
        export.send()
    export.receiver.faults.clear()
    assert resend(export.fixtures.console_pool, local_administrator(export.fixtures.tenant_id), export.endpoint_id) == 2


def test_dead_letters_that_are_sent_again_to_a_receiver_that_hangs_hold_up_nobody_else(export: Export) -> None:
    """The finding: every thread took one of them before each turn, so that all others waited as long as all the calls took."""
    two_dead_letters(export)
    called, go_on = threading.Event(), threading.Event()

    def hang(asked: Asked) -> None:
        called.set()
        go_on.wait(150)
        asked.answer(204, b"")

    export.receiver.faults[:] = [hang, hang]
    export.receiver.http.asked.clear()
    with EventReceiver().running() as other:
        export.add(other, "decision")
        wanted = export.fixtures.guard()["decision_event_id"]
        export.fixtures.run_housekeeping()
        export.fixtures.admin.execute(
            "update sentinel.event_endpoints set next_attempt_at = clock_timestamp() + interval '1 hour' where endpoint_id = %s",
            [export.endpoint_id],
        )
        hanging = threading.Thread(target=export.sender.round)
        hanging.start()
        try:
            assert called.wait(60)
            export.sender.round()
            assert (len(export.receiver.http.asked), other.ids) == (1, [wanted])
        finally:
            go_on.set()
            hanging.join()


def test_dead_letters_of_several_receivers_are_sent_again_in_turns(export: Export) -> None:
    with EventReceiver().running() as other:
        added = export.add(other, "decision")
        two_dead_letters(export)
        export.receiver.faults[:] = [answers(500)] * 2
        export.fixtures.admin.execute(
            "insert into sentinel.dead_letters (tenant_id, endpoint_id, event_id, feed_tenant_id, position, attempts, last_error)"
            " select tenant_id, %s, event_id, feed_tenant_id, position, 1, 'timeout' from sentinel.dead_letters limit 1",
            [added],
        )
        assert resend(export.fixtures.console_pool, local_administrator(export.fixtures.tenant_id), added) == 1
        export.receiver.http.asked.clear()
        other.http.asked.clear()
        for _ in range(2):
            export.sender._resend()
        assert (len(export.receiver.http.asked), len(other.http.asked)) == (1, 1)


def test_a_disabled_webhook_is_sent_no_dead_letter_either(export: Export) -> None:
    pool, actor = export.fixtures.console_pool, local_administrator(export.fixtures.tenant_id)
    fail_for_too_long(export)
    assert resend(pool, actor, export.endpoint_id) == 1
    disable_webhook(pool, actor, export.endpoint_id)
    export.send()
    assert export.receiver.ids == []
    export.fixtures.admin.execute("update sentinel.dead_letters set resend_asked_at = null")
    with pytest.raises(Conflict, match="disabled"):
        resend(pool, actor, export.endpoint_id)
    enable_webhook(pool, actor, export.endpoint_id)
    assert resend(pool, actor, export.endpoint_id) == 1


DISCARD = """
select body::jsonb ->> 'by', body::jsonb ->> 'endpoint_id', (body::jsonb ->> 'letters')::integer, body::jsonb ->> 'reason' from sentinel.events
where tenant_id = %s and kind = 'dead_letters_discarded'
"""


def test_a_dead_letter_of_a_receiver_that_is_gone_is_discarded_and_counted_no_more(export: Export) -> None:
    fixtures, pool = export.fixtures, export.fixtures.console_pool
    actor = local_administrator(fixtures.tenant_id)
    deliveries = Deliveries(export.pool, ["webhook"], lease_seconds=1, give_up_seconds=100)
    fail_for_too_long(export)
    assert resend(pool, actor, export.endpoint_id) == 1
    disable_webhook(pool, actor, export.endpoint_id)
    (letter,) = list_dead_letters(pool, fixtures.tenant_id)
    assert deliveries.counts().dead_letters == 1
    with pytest.raises(NotFound):
        discard_dead_letters(pool, actor, export.endpoint_id, uuid.uuid4(), reason="moved")
    assert discard_dead_letters(pool, actor, export.endpoint_id, letter.event_id, reason="moved") == 1
    with pytest.raises(NotFound):
        discard_dead_letters(pool, actor, export.endpoint_id, reason="moved")
    assert list_dead_letters(pool, fixtures.tenant_id) == []
    assert deliveries.counts().dead_letters == 0
    assert [one.dead_letters for one in list_endpoints(pool, fixtures.tenant_id)] == [0]
    told = fixtures.admin.execute(DISCARD, [fixtures.tenant_id]).fetchall()
    assert told == [(actor.name, str(export.endpoint_id), 1, "moved")]
    enable_webhook(pool, actor, export.endpoint_id)
    with pytest.raises(NotFound):
        resend(pool, actor, export.endpoint_id)
    export.send()
    assert str(letter.event_id) not in export.receiver.ids, "nobody wants it any more"


def test_what_concerns_every_tenant_gives_what_fails_behind_it_no_new_time(export: Export) -> None:
    """The finding: with a policy changed more often than every twelve hours nothing was ever given up."""
    export.fixtures.guard()
    for _ in range(3):
        export.receiver.faults[:] = [answers(500)]
        export.send()
        export.due_now()
    since = export.row("first_failed_at")
    export.fixtures.admin.execute(
        "select sentinel.append_event(%s, gen_random_uuid(), 'policy_in_force', null, null, clock_timestamp(), '{}')",
        [uuid.UUID(int=0)],
    )
    export.receiver.faults[:] = [lambda asked: asked.answer(204, b""), answers(500)]
    export.send()
    assert export.receiver.faults == [], "the policy was taken, the decision behind it was not"
    assert export.row("attempts") == (4,) and export.row("first_failed_at") == since
    pause = "extract(epoch from next_attempt_at - clock_timestamp()) > 10"
    assert export.row(pause) == (True,), "the fourth pause is 40 s, not the first one's 5"
    export.due_now()
    export.send()
    assert export.row("attempts, first_failed_at") == (0, None)


def test_what_happens_while_a_receiver_is_down_has_its_own_time(export: Export) -> None:
    """What concerns every tenant is tried first, by a receiver that fails since before it happened."""
    export.fixtures.guard()
    export.receiver.faults[:] = [answers(500)] * 3
    export.send()
    export.let_hours_pass(13)
    export.fixtures.admin.execute(
        "select sentinel.append_event(%s, gen_random_uuid(), 'policy_in_force', null, null, clock_timestamp(), '{}')",
        [uuid.UUID(int=0)],
    )
    export.due_now()
    export.send()
    assert list_dead_letters(export.fixtures.console_pool, export.fixtures.tenant_id) == []
    export.let_hours_pass(13)
    export.due_now()
    export.send()
    (letter,) = list_dead_letters(export.fixtures.console_pool, export.fixtures.tenant_id)
    assert (letter.event, letter.attempts) == ("policy_in_force", 3)


def test_only_time_makes_a_dead_letter(export: Export) -> None:
    export.fixtures.guard()
    for _ in range(20):
        export.receiver.faults[:] = [answers(500)]
        export.send()
        export.due_now()
    assert (
        export.row("attempts") == (20,)
        and list_dead_letters(export.fixtures.console_pool, export.fixtures.tenant_id) == []
    )


def test_an_event_that_waited_long_is_tried_again_like_any_other(export: Export) -> None:
    """A webhook that was disabled over a weekend goes on with old events: one bad answer loses none of them."""
    made = str(export.fixtures.guard()["decision_event_id"])
    export.let_hours_pass(60)
    export.receiver.faults[:] = [answers(503)]
    export.send()
    assert list_dead_letters(export.fixtures.console_pool, export.fixtures.tenant_id) == []
    assert export.row("attempts, last_error") == (1, "http_503")
    export.due_now()
    export.send()
    assert export.receiver.ids == [made]


def test_a_sender_that_comes_too_late_moves_nothing(export: Export) -> None:
    deliveries = Deliveries(export.pool, ["webhook"], lease_seconds=600, give_up_seconds=0)
    export.fixtures.guard()
    export.fixtures.run_housekeeping()
    slow = deliveries.claim()
    assert slow is not None and deliveries.claim() is None, "one sender at a time"
    export.due_now()  # its lease is over
    quick = deliveries.claim()
    assert quick is not None and quick.epoch == slow.epoch + 1
    (event,) = deliveries.events_after(slow.tenant_id, slow.position, ["decision"], 10)
    before = export.row("position, attempts, epoch")
    assert deliveries.advance(slow, slow.tenant_id, event.position, delivered=True) is None
    assert deliveries.fail(slow, slow.tenant_id, [event], "late", 0.0) is False
    deliveries.release(slow)
    assert export.row("position, attempts, epoch") == before and deliveries.claim() is None


def test_several_senders_share_receivers_and_keep_each_ones_order(export: Export) -> None:
    wanted = [export.fixtures.guard()["decision_event_id"] for _ in range(12)]
    export.fixtures.run_housekeeping()
    stop, pairs = threading.Event(), []
    for _ in range(3):
        sender = make_sender(export.settings, export.pool)
        pairs.append(threading.Thread(target=sender._work, args=(0, stop)))
    for one in pairs:
        one.start()
    try:
        wait_until(lambda: len(export.receiver.ids) >= len(wanted))
    finally:
        stop.set()
        for one in pairs:
            one.join()
    assert export.receiver.ids == wanted


@pytest.mark.parametrize(
    ("addresses", "url", "why"),
    [
        ("public", "http://127.0.0.1:9/", "scheme"), ("public", "https://127.0.0.1/", "inside_address"),
        ("public", "https://10.1.2.3/", "inside_address"), ("public", "https://user@example.com/", "form"),
        ("private", "http://169.254.169.254/latest/", "inside_address"), ("private", "http://127.0.0.1:5432/", "inside_address"),
        ("loopback", "https://93.184.216.34/", "inside_address"),
    ],
)  # fmt: skip
def test_addresses_that_are_not_allowed_are_never_called(
    fixtures: Fixtures, addresses: str, url: str, why: str
) -> None:
    with exporting(fixtures) as export:
        settings = dataclasses.replace(export.settings, addresses=addresses)
        assert settings.client.fault(url) == why
        assert WORDS[why]
        fixtures.admin.execute(
            "update sentinel.event_endpoints set disabled_at = clock_timestamp(), disabled_reason = 'administrator'"
        )
        fixtures.admin.execute(
            "insert into sentinel.event_endpoints (tenant_id, endpoint_id, kind, url, position, global_position)"
            " values (%s, %s, 'webhook', %s, 0, 0)", [fixtures.tenant_id, made := uuid.uuid4(), url])  # fmt: skip
        fixtures.guard()
        fixtures.run_housekeeping()
        make_sender(settings, export.pool).round()
        assert export.row("last_error", made) == (f"not_allowed: {why}",)


def test_a_private_network_may_be_allowed_by_a_setting() -> None:
    assert [PRIVATE_CLIENT.fault(url) for url in ("http://10.1.2.3:8088/services", "https://192.168.1.9/")] == [
        None,
        None,
    ]
