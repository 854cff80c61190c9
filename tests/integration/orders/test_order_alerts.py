"""Alerts until a channel took them, and the shop that is made of rows."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, cast

import psycopg
import pytest
from psycopg.types.json import Jsonb

from sentinel.platform.backoff import Backoff
from sentinel.platform.outbound.public_addresses import LOOPBACK_CLIENT
from sentinel.store.database import ORDERS, Pool, with_role
from tests.support.harness import at_once
from tests.support.lost_connections import LosesConnection
from tests.support.scripted_server import Asked, Script, ScriptedServer, deadline_for, faults
from tests.support.shop_server import review
from worker.orders.alerts import (
    Alert,
    Alerts,
    Channel,
    LogChannel,
    SlackChannel,
    channel_from,
    text_of,
)
from worker.orders.shop import Attempts, EffectKind, ShopStatus, SimulatedShop, perform
from worker.outbound.effects import EffectRefused, NoAnswer, Settled

TENANT = uuid.uuid4()
RAISE = b"select orders.raise_alerts(%s)"
SIGNALS = {"signals": [{"code": "country_mismatch", "detail": "<!channel> GB & NG"}]}


class Desk:
    """One tenant's outbox and database."""

    def __init__(self, url: str) -> None:
        self.pool = Pool(with_role(url, ORDERS), size=8)
        self.admin = psycopg.connect(url, autocommit=True)

    def alerts(self, channel: Channel) -> Alerts:
        return Alerts(self.pool, TENANT, channel, spread=lambda: 0.0)

    def raise_alert(self, alert: dict[str, Any]) -> None:
        self.admin.execute(RAISE, [Jsonb([alert])])

    def waiting(self) -> int:
        found = self.admin.execute("select count(*) from orders.alerts where delivered_at is null").fetchone()
        assert found is not None
        return int(found[0])

    def row(self) -> tuple[Any, ...]:
        found = self.admin.execute("select attempts, last_error, delivered_by from orders.alerts").fetchone()
        assert found is not None
        return found

    def make_due(self) -> None:
        self.admin.execute("update orders.alerts set next_attempt_at = clock_timestamp()")


@pytest.fixture
def desk(database_url: str) -> Iterator[Desk]:
    made = Desk(database_url)
    yield made
    made.pool.close()
    made.admin.close()


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer().running() as running:
        yield running


def held(order_id: str = "o-1", **more: Any) -> dict[str, Any]:
    """An alert as the intake's functions raise it."""
    alert = {"kind": "order_held", "summary": "a high-risk order was held", "details": SIGNALS, **more}
    return {"tenant_id": str(TENANT), "source": "demo", "order_id": order_id, "alert": alert}


class LosesOneWhileSending(LogChannel):
    """Takes every alert; the connection that is used after the first one is lost."""

    def __init__(self, pool: Pool) -> None:
        self.pool, self.taken = pool, list[str]()

    def connection(self) -> AbstractContextManager[Any]:
        """As the pool's."""
        return self.pool.connection()

    def send(self, alert: Alert) -> str | None:
        """Take it."""
        if not self.taken:
            self.pool = cast("Pool", LosesConnection(self.pool, is_committed=False))
        self.taken.append(alert.order_id)
        return None


def test_a_connection_that_is_lost_while_alerts_are_sent_repeats_none_and_delays_none(desk: Desk) -> None:
    """The finding: the alert that was being sent was sent again, and the others taken with it waited for a minute or more."""
    for number in range(3):
        desk.raise_alert(held(f"o-{number}"))
    channel = LosesOneWhileSending(desk.pool)
    alerts = Alerts(cast("Pool", channel), TENANT, channel)
    assert alerts.deliver_due() == 3
    assert (sorted(channel.taken), desk.waiting()) == (["o-0", "o-1", "o-2"], 0)


def ok(asked: Asked) -> None:
    """As Slack itself does; others that take its messages say it as text/plain."""
    asked.answer(200, b"ok", "text/html")


def test_a_channel_that_is_down_is_tried_until_it_takes_the_alert_and_shown_meanwhile(
    desk: Desk, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.orders.alerts.BACKOFF", Backoff(3600.0, 3600.0))
    alerts, hasty = (
        desk.alerts(SlackChannel(server.url + "/T/B/x", LOOPBACK_CLIENT, deadline_seconds=deadline_for(known)))
        for known in ("answered", "timeout")
    )
    desk.raise_alert(held())
    fails: list[tuple[Script, str]] = [
        (lambda asked: asked.answer(503, b""), "http_503"), (lambda asked: asked.answer(404, b"no_service", "text/plain"), "http_404"),
        (lambda asked: asked.reset(), "broken"), (lambda asked: asked.hang(), "timeout"),
        (lambda asked: asked.answer(200, b"<html>", "text/html"), "a web page"), (lambda asked: asked.answer(302, b"", Location="/ok"), "http_302"),
    ]  # fmt: skip
    for number, (script, named) in enumerate(fails, 1):
        server.script = script
        assert (hasty if named == "timeout" else alerts).deliver_due() == 0
        assert desk.row() == (number, named, None)
        assert desk.waiting() == 1
        assert alerts.deliver_due() == 0  # not due before its pause is over
        desk.make_due()
    server.script = ok
    assert alerts.deliver_due() == 1
    assert desk.row() == (7, None, "slack")
    assert (desk.waiting(), len(server.asked)) == (0, 7)
    desk.make_due()
    assert alerts.deliver_due() == 0
    sent = server.asked[-1].json
    assert sent.keys() == {"text"}
    assert "country_mismatch: &lt;!channel&gt; GB &amp; NG" in sent["text"]
    assert "o-1" in sent["text"]


def test_the_same_alert_is_raised_once_and_another_occasion_is_another(desk: Desk) -> None:
    alerts = desk.alerts(LogChannel())
    for fields in (held(), held(), held(occasion="2"), held("o-2")):
        desk.raise_alert(fields)
    assert desk.waiting() == 3
    assert alerts.deliver_due() == 3
    desk.raise_alert(held())
    assert desk.waiting() == 0


@pytest.mark.usefixtures("patient")
def test_several_processes_deliver_each_alert_once(desk: Desk, server: ScriptedServer) -> None:
    server.script = ok
    alerts = desk.alerts(SlackChannel(server.url, LOOPBACK_CLIENT, deadline_seconds=deadline_for("answered")))
    for number in range(30):
        desk.raise_alert(held(f"o-{number}"))
    assert sum(at_once([lambda: alerts.deliver_due(10)] * 6)) == 30  # type: ignore[list-item, arg-type]
    assert len(server.asked) == 30


class _Slow:
    """Notes how long the alerts of its round are this process's at the first one."""

    name, longest_seconds = "slow", 9.0

    def __init__(self, desk: Desk) -> None:
        self._desk, self.held_seconds = desk, 0.0

    def send(self, alert: Alert) -> str | None:
        held = "select extract(epoch from min(next_attempt_at) - clock_timestamp())::float from orders.alerts where delivered_at is null"
        self.held_seconds = max(self.held_seconds, self._desk.admin.execute(held).fetchone()[0])  # type: ignore[index]
        return None


def test_alerts_are_held_for_as_long_as_their_sending_may_take(desk: Desk) -> None:
    """The finding: twenty that take 5 s each were held for 60 s, and another process sent the last of them too."""
    channel = _Slow(desk)
    alerts = desk.alerts(channel)
    for number in range(3):
        desk.raise_alert(held(f"o-{number}"))
    assert alerts.deliver_due(20) == 3
    assert channel.held_seconds > 20 * channel.longest_seconds


class _Defective:
    name, longest_seconds = "defective", 0.0

    def send(self, alert: Alert) -> str | None:
        raise RuntimeError("https://secret.example")


def test_a_defect_in_a_channel_stops_nothing_and_its_text_is_not_kept(desk: Desk) -> None:
    alerts = desk.alerts(_Defective())
    desk.raise_alert(held())
    assert alerts.deliver_due() == 0
    assert desk.row() == (1, "defect: RuntimeError", None)


def test_what_an_alert_says_cannot_be_changed_or_taken_away(desk: Desk) -> None:
    desk.raise_alert(held())
    with pytest.raises(psycopg.errors.CheckViolation, match="cannot change"):
        desk.admin.execute("update orders.alerts set summary = 'fine'")
    for statement in ("delete from orders.alerts", "truncate orders.alerts"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="append-only"):
            desk.admin.execute(statement.encode())
    with desk.pool.connection() as connection:
        connection.execute("update orders.alerts set delivered_at = clock_timestamp(), delivered_by = 'x'")
        with pytest.raises(psycopg.errors.CheckViolation):
            connection.execute("update orders.alerts set delivered_at = null, delivered_by = null")


def test_an_alert_belongs_to_the_transaction_of_what_it_is_about(desk: Desk) -> None:
    with desk.pool.connection() as connection, connection.transaction(force_rollback=True):
        connection.execute(RAISE, [Jsonb([held()])])
    assert desk.waiting() == 0


@pytest.mark.parametrize(
    "url",
    ["https://127.0.0.1/x", "https://10.0.0.1/x", "http://hooks.slack.com/x", "https://metadata.google.internal/x"],
)
def test_a_channel_inside_is_never_called(server: ScriptedServer, url: str) -> None:
    alert = Alert(uuid.uuid4(), "order_held", "demo", "o-1", "held", {}, 1)
    assert str(channel_from(slack_webhook_url=url).send(alert)).startswith("not_allowed")
    assert str(channel_from(slack_webhook_url=server.url).send(alert)).startswith("not_allowed")
    assert server.asked == []


@pytest.mark.parametrize("name", sorted(faults(b"ok")))
def test_whatever_a_channel_answers_is_a_word_or_two(server: ScriptedServer, name: str) -> None:
    server.script, known = faults(b"ok")[name]
    alert = Alert(uuid.uuid4(), "order_held", "demo", "o-1", "held", {}, 1)
    said = SlackChannel(server.url, LOOPBACK_CLIENT, deadline_seconds=deadline_for(known)).send(alert)
    assert said is None if known == "answered" and name not in ("429", "500", "redirect", "HTML", "deep") else said
    assert server.url not in str(said)


def test_a_message_is_bounded_and_has_no_line_of_a_strangers(desk: Desk) -> None:
    details = {"signals": [{"code": "x", "detail": "a\n*b*\r" + "y" * 10_000}] * 100}
    text = text_of(Alert(uuid.uuid4(), "order_held", "demo", "o-1", "held", json.loads(json.dumps(details)), 1))
    assert len(text.splitlines()) == 22
    assert len(text) < 12_000


def test_a_strangers_text_makes_no_link_in_a_message() -> None:
    details = {"signals": [{"code": "note", "detail": "ask @here at http://evil.example/ops or 12.50 USD"}]}
    told = text_of(Alert(uuid.uuid4(), "order_held", "demo", "www.evil.example", "held", details, 1))
    assert told.splitlines() == [
        "*held*", "order www. evil. example of demo", "• note: ask @ here at http:// evil. example/ ops or 12.50 USD",
    ]  # fmt: skip


# The simulated shop --------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("patient")
def test_the_simulated_shop_ships_an_order_once_whoever_asks_how_often(desk: Desk) -> None:
    shop, one = SimulatedShop(desk.pool, TENANT), review()
    operation_id = one.operation_id or uuid.uuid4()
    said = at_once([lambda: perform(shop, one, EffectKind.FULFIL, operation_id)] * 16)
    assert set(said) == {Settled(str(operation_id))}
    assert desk.admin.execute("select count(*) from orders.simulated_shop").fetchone() == (1,)
    assert isinstance(perform(shop, one, EffectKind.FULFIL, uuid.uuid4()), EffectRefused)
    assert isinstance(perform(shop, one, EffectKind.HOLD, operation_id), EffectRefused)
    assert shop.look(one) == ShopStatus("fulfilled", str(operation_id), str(operation_id))
    assert perform(shop, one, EffectKind.FULFIL, operation_id, Attempts(1, 60.0)) == Settled(str(operation_id))


@pytest.mark.usefixtures("patient")
def test_the_simulated_shop_never_ships_what_it_holds(desk: Desk) -> None:
    shop, one = SimulatedShop(desk.pool, TENANT), review()
    said = at_once([lambda k=k: perform(shop, one, k, one.operation_id or uuid.uuid4()) for k in list(EffectKind) * 8])  # type: ignore[misc]
    assert {type(answer) for answer in said} == {Settled, EffectRefused}
    assert sum(isinstance(answer, Settled) for answer in said) == 8
    assert isinstance(perform(shop, review("o-2"), EffectKind.HOLD, uuid.uuid4()), Settled)
    assert isinstance(perform(shop, review("o-2"), EffectKind.FULFIL, uuid.uuid4()), EffectRefused)


def test_a_database_that_is_down_is_no_answer() -> None:
    pool = Pool("host=127.0.0.1 port=9 dbname=x connect_timeout=2", size=1)
    shop = SimulatedShop(pool, TENANT)
    assert isinstance(perform(shop, review(), EffectKind.FULFIL, uuid.uuid4()), NoAnswer)
    pool.close()
