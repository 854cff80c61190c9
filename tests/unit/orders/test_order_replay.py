"""`worker order-review replay`, `sign` and `sources` against a small intake that checks signatures and remembers orders."""

from __future__ import annotations

import json
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sentinel.platform.resources import policies_dir
from tests.corpora.retail import retail_lines
from tests.support.canned_answers import PLACE, answering
from tests.support.scripted_server import Asked, ScriptedServer
from worker.orders.online_retail import payload_of, read_retail_orders
from worker.orders.replay import (
    MOST_TRIES,
    NO_LANE,
    DeliveryResult,
    ReplayedDelivery,
    ReplaySummary,
    Sender,
    percentiles,
    replay,
)
from worker.orders.replay_cli import replay_orders, sign_webhook, sources
from worker.orders.sources import FILE_NAME, Sources, Verified

SECRETS = {
    "ORDERS_DEMO_SECRET": "only-for-tests-0123456789abcdef", "SHOPIFY_WEBHOOK_SECRET": "only-for-tests-shopify-0123456789",
    "STANDARD_WEBHOOK_SECRET": "whsec_" + "A" * 43 + "=", "SHOP_WEBHOOK_SECRET": "only-for-tests-shop-0123456789",
}  # fmt: skip
HEAD = "InvoiceNo,StockCode,Description,Quantity,InvoiceDate,UnitPrice,CustomerID,Country"
LINES = [
    f"{number},85123A,WHITE LANTERN,6,2010-12-01 08:26:00,{price},17850.0,United Kingdom"
    for number, price in (("536365", "2.55"), ("536366", "100"), ("536367", "900"), ("536368", "0"))
] + ["C536379,D,Discount,-1,2010-12-01 09:41:00,27.50,14527.0,United Kingdom"]  # fmt: skip


class Intake:
    """Verifies, maps and lanes orders by amount; `busy` lists statuses answered first."""

    def __init__(self) -> None:
        self.http = ScriptedServer()
        self.http.script = self._answer
        self.busy: list[int] = []
        self.effects: Counter[str] = Counter()
        self.bodies: dict[str, bytes] = {}
        self.unsigned = 0
        self.forgets = False
        self._lock = threading.Lock()

    def _answer(self, asked: Asked) -> None:
        with self._lock:
            if self.busy:
                return asked.answer(self.busy.pop(), b"{}", Retry_After="0", Connection="close")
            return self._decide(asked)

    def _decide(self, asked: Asked) -> None:
        name = asked.path.split("/")[2]
        source = Sources.load(policies_dir() / FILE_NAME, SECRETS).find(name)
        assert source is not None
        if not isinstance(source.signing.verify(asked.headers, asked.body, datetime.now(UTC)), Verified):
            self.unsigned += 1
            return asked.answer(401, b"{}", Connection="close")
        order = source.to_order(asked.json)
        again = order.order_id in self.bodies and not self.forgets
        if not again:
            self.effects[order.order_id] += 1
            self.bodies[order.order_id] = asked.body
        lane = (
            "low" if order.amount.amount_minor < 10_000 else "medium" if order.amount.amount_minor < 100_000 else "high"
        )
        more = {"X_Sentinel_Idempotent_Replay": "true"} if again else {}
        return asked.answer(
            202 if lane == "medium" else 200, json.dumps({"lane": lane}).encode(), Connection="close", **more
        )


@pytest.fixture
def intake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Intake]:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    made = Intake()
    with made.http.running():
        yield made


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    file = tmp_path / "orders.csv"
    file.write_text("\n".join([HEAD, *LINES]) + "\n")
    return file


def run(intake: Intake, file: Path, *more: str) -> tuple[Result, dict[str, Any]]:
    """The command's result and its JSON."""
    result = CliRunner().invoke(replay_orders, [str(file), "--url", intake.http.url, "--rate", "1000", "--json", *more])
    return result, json.loads(result.stdout) if result.stdout.startswith("{") else {}


@pytest.mark.parametrize("source", ["demo", "shop", "shopify", "standard"])
def test_real_orders_are_posted_signed_and_mapped_as_each_source_has_them(
    intake: Intake, orders: Path, source: str
) -> None:
    result, found = run(intake, orders, "--source", source)
    assert result.exit_code == 0, result.output
    assert found["lanes"] == {"high": 1, "low": 1, "medium": 1}
    assert (found["orders"], found["deliveries"], found["not_sent"], intake.unsigned) == (3, 3, 1, 0)
    assert found["latency_ms"]["p50"] > 0
    table = Sources.load(policies_dir() / FILE_NAME, SECRETS).find(source)
    assert table is not None
    order = table.to_order(json.loads(intake.bodies["536365"]))
    assert (order.amount.amount_minor, order.amount.currency, order.account_ref) == (1530, "GBP", "retail-17850")
    assert (order.items[0].sku, order.items[0].quantity, order.shipping_country, order.email) == (
        "85123A",
        6,
        None,
        None,
    )
    assert order.placed_at == datetime(2010, 12, 1, 8, 26, tzinfo=UTC)


def test_redelivered_orders_have_one_lane_and_each_effect_once(intake: Intake, orders: Path) -> None:
    intake.busy = [409, 429, 503, 409]
    result, found = run(intake, orders, "--redeliver")
    assert result.exit_code == 0, result.output
    assert (found["orders"], found["deliveries"], found["replays"]) == (3, 6, 3)
    assert (found["in_flight"], found["rate_limited"], found["unavailable"]) == (2, 1, 1)
    assert intake.effects == {"536365": 1, "536366": 1, "536367": 1}
    assert found["replay_latency_ms"]["max"] > 0


def test_mutant_an_intake_that_forgets_does_it_twice_and_the_replay_sees_no_replays(
    intake: Intake, orders: Path
) -> None:
    intake.forgets = True
    _, found = run(intake, orders, "--redeliver")
    assert found["replays"] == 0
    assert set(intake.effects.values()) == {2}


def test_people_are_told_in_words(intake: Intake, orders: Path) -> None:
    result = CliRunner().invoke(replay_orders, [str(orders), "--url", intake.http.url, "--rate", "500", "--limit", "2"])
    assert result.exit_code == 0, result.output
    assert "2 deliveries of 2 orders" in result.stdout
    assert "low" in result.stdout


def test_an_order_without_a_lane_fails_the_command(
    intake: Intake, orders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORDERS_DEMO_SECRET", "another-secret-0123456789abcdef")
    result, found = run(intake, orders)
    assert (result.exit_code, found["lanes"], found["statuses"]) == (1, {NO_LANE: 3}, {"401": 3})


@pytest.mark.parametrize(
    ("more", "said"),
    [(["--source", "nobody"], "there is no source nobody; known: demo, shop"), (["--policies", "."], "order_sources.yaml"),
     (["--rate", "0"], "rate")],
)  # fmt: skip
def test_what_cannot_be_sent_is_said_in_a_line(intake: Intake, orders: Path, more: list[str], said: str) -> None:
    result = CliRunner().invoke(replay_orders, [str(orders), "--url", intake.http.url, *more])
    assert result.exit_code == 2
    assert said in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://127.0.0.1:99999", "not an address"])
def test_an_intake_that_is_not_there_is_said_at_once(intake: Intake, orders: Path, url: str) -> None:
    result = CliRunner().invoke(replay_orders, [str(orders), "--url", url])
    assert result.exit_code == 1
    assert result.stderr.startswith(f"Error: no answer from {url}: ")
    assert len(result.stderr.splitlines()) == 1


def test_a_file_that_is_another_one_or_a_source_without_a_secret_is_refused(
    orders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ORDERS_DEMO_SECRET", raising=False)
    refused = CliRunner().invoke(replay_orders, [str(orders)])
    assert (refused.exit_code, "has no secret" in refused.stderr) == (2, True)
    monkeypatch.setenv("ORDERS_DEMO_SECRET", SECRETS["ORDERS_DEMO_SECRET"])
    for text in (b"a,b\n1,2\n", b"\xff\xfe"):
        other = tmp_path / "other.csv"
        other.write_bytes(text)
        refused = CliRunner().invoke(replay_orders, [str(other)])
        assert refused.exit_code == 2
        assert refused.stderr.startswith("error: ")


def test_the_printed_line_posts_the_file_signed(intake: Intake, tmp_path: Path) -> None:
    file = tmp_path / "it's an order.json"
    file.write_text('{"order": {"id": "o-77", "amount": {"value": "12.50", "currency": "GBP"}}}\n')
    printed = CliRunner().invoke(sign_webhook, [str(file), "--url", intake.http.url]).stdout
    assert SECRETS["ORDERS_DEMO_SECRET"] not in printed
    answer = subprocess.run(["sh", "-c", printed], capture_output=True, text=True, timeout=120, check=False)
    assert json.loads(answer.stdout) == {"lane": "low"}, answer
    assert intake.effects == {"o-77": 1}


def test_the_sources_are_listed_with_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SECRETS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ORDERS_DEMO_SECRET", SECRETS["ORDERS_DEMO_SECRET"])
    listed = json.loads(CliRunner().invoke(sources, ["--json"]).stdout)["sources"]
    assert {one["source"]: one["open"] for one in listed} == {
        "demo": True,
        "shop": False,
        "shopify": False,
        "standard": False,
    }
    shown = CliRunner().invoke(sources, []).stdout
    assert "its secret is not set" in shown
    assert SECRETS["ORDERS_DEMO_SECRET"] not in shown


def test_two_lanes_for_one_order_are_never_reported_as_one() -> None:
    def delivery(lane: str) -> DeliveryResult:
        return DeliveryResult("o", 200, lane, False, 0.1, Counter())

    assert ReplaySummary([delivery("low"), delivery("low")]).is_good
    assert ReplaySummary([delivery("low"), delivery(NO_LANE)]).lanes == {"o": "low"}
    assert ReplaySummary([delivery("low"), delivery("high")]).lanes == {"o": "different lanes"}
    assert not ReplaySummary([delivery("low"), delivery("high")]).is_good
    assert not ReplaySummary([delivery(NO_LANE)]).is_good
    assert not ReplaySummary().is_good


def test_sending_keeps_to_the_rate() -> None:
    slept: list[float] = []
    tally = replay(
        [ReplayedDelivery(str(n), b"") for n in range(5)], lambda d: DeliveryResult(d.order_id, 200, "low", False, 0.0, Counter()), per_second=10,
        threads=2, now=lambda: sum(slept), pause=slept.append,
    )  # fmt: skip
    assert [round(pause, 3) for pause in slept] == [0.1] * 4
    assert len(tally.answers) == 5
    assert percentiles([]) == {}
    assert percentiles([0.001 * n for n in range(1, 101)]) == {"p50": 51.0, "p95": 96.0, "p99": 100.0, "max": 100.0}


@pytest.mark.parametrize("lines", retail_lines())
def test_every_order_of_a_file_can_be_told_by_every_source(lines: list[str]) -> None:
    found, imported = read_retail_orders(lines, "demo")
    assert (len(imported.orders) > 250, len(imported.refunds) > 25, imported.refused) == (True, True, [])
    assert len(found) > 250
    for source in Sources.load(policies_dir() / FILE_NAME, SECRETS).all:
        for order in found:
            delivery = source.to_order(json.loads(json.dumps(payload_of(order, source.fields))))
            assert (delivery.order_id, delivery.amount, delivery.account_ref, delivery.placed_at, delivery.items) == (
                order.order_id, order.amount, order.account_ref, order.placed_at, order.items)  # fmt: skip


def test_an_answer_that_stays_busy_to_the_last_try_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sources_file = Sources.load(policies_dir() / FILE_NAME, SECRETS)
    source = next(one for one in sources_file.all if one.name == "demo")
    pauses: list[float] = []
    with answering(b"{}", status=429) as asked:
        found = Sender(PLACE, source, pause=pauses.append).send(ReplayedDelivery("1", b"{}"))
    assert len(asked) == MOST_TRIES == ReplaySummary([found]).count(429)
    assert len(pauses) == MOST_TRIES - 1


def test_an_interrupted_replay_sends_only_what_is_in_flight() -> None:
    sent: list[str] = []
    stopped, pauses = threading.Event(), iter(range(5))

    def send(delivery: ReplayedDelivery) -> DeliveryResult:
        sent.append(delivery.order_id)
        stopped.wait(60)
        return DeliveryResult(delivery.order_id, 503, NO_LANE, False, 0.0, Counter())

    def pause(_seconds: float) -> None:
        if next(pauses, None) is None:
            raise KeyboardInterrupt

    deliveries = [ReplayedDelivery(str(number), b"") for number in range(1000)]
    with pytest.raises(KeyboardInterrupt):
        replay(deliveries, send, per_second=1, threads=1, now=lambda: 0.0, pause=pause, stop=stopped.set)
    assert stopped.is_set() and sent == ["0"]


def test_a_sender_that_is_stopped_tries_nothing_again() -> None:
    source = Sources.load(policies_dir() / FILE_NAME, SECRETS).find("demo")
    assert source is not None
    with answering(b"{}", status=429) as asked:
        sender = Sender(PLACE, source)
        sender.stop()
        assert sender.send(ReplayedDelivery("1", b"{}")).status == 429
    assert len(asked) == 1
