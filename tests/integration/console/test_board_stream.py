"""The public board's live stream: costs little a viewer, misses and doubles nothing."""

from __future__ import annotations

import re
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from ops_console.board import hub, stream
from ops_console.board.events import LiveEvent, Looked
from ops_console.board.hub import Hub
from ops_console.board.stream import Pace, Stream
from sentinel.core.errors import EngineUnavailable, TooManyStreams
from sentinel.platform.serving.server import CannotServe, require_open_files
from tests.support.busy import in_time
from tests.support.feeds import live_event
from tests.support.served_programs import eventually
from tests.support.streaming import Loop, Viewer


class Airing:
    """A hub over a list, its stream, and viewers of it."""

    def __init__(self, loop: Loop, **how: Any) -> None:
        self.loop = loop
        self.status: dict[str, str] | None = {}
        self.tenant_id, self.tenant_label, self.history = uuid.UUID(int=7), "", 0
        self.rows: list[LiveEvent] = []
        self.most_read = 0
        self.stops = False
        self.hub = Hub(
            self.read_after,
            lambda most: Looked(self.tenant_id, self.rows[::-1][:most], 0, self.head(), self.tenant_label, self.history), read_status=self.read_status, max_viewers=1000, most_of_address=50, stopping=lambda: self.stops,
        )  # fmt: skip
        self.stream = Stream(self.hub, headers={}, **how)

    def head(self) -> int:
        return self.rows[-1].position if self.rows else 0

    def read_after(self, after: int, most: int) -> Looked:
        found = [one for one in self.rows if one.position > after]
        self.most_read = max(self.most_read, len(found[-most:]))
        left_out, position = len(found) - len(found[-most:]), max(after, self.head())
        return Looked(self.tenant_id, found[-most:], left_out, position, self.tenant_label, self.history)

    def read_status(self) -> dict[str, str]:
        if self.status is None:
            raise EngineUnavailable("the database is away")
        return self.status

    @property
    def encoded(self) -> int:
        """How many decisions were encoded; one that was encoded twice counts twice."""
        return self.stream.encode.cache_info().misses

    def view(self, last_seen: int | None = None) -> Viewer:
        viewer = self.loop.view(self.stream, **({} if last_seen is None else {"HTTP_LAST_EVENT_ID": str(last_seen)}))
        assert viewer.block() == ": connected\nretry: 2000\n\n"
        return viewer

    def happen(self, *positions: int) -> None:
        self.rows.extend(live_event(one) for one in positions)


@pytest.fixture
def airing(request: pytest.FixtureRequest) -> Iterator[Airing]:
    with Loop() as loop:
        made = Airing(loop, **getattr(request, "param", {}))
        yield made
        made.stops = True
        assert eventually(lambda: made.hub.viewers == 0, within=5)


def positions(viewer: Viewer, last: int) -> list[int]:
    """The ids a viewer gets, up to `last`."""
    found: list[int] = []
    while last not in found:
        block = viewer.block()
        if not block:
            break
        found += [int(one) for one in re.findall(r"^id: (\d+)$", block, re.MULTILINE)]
    return found


def test_what_is_new_is_encoded_once_for_all_viewers_and_takes_one_thread(airing: Airing) -> None:
    airing.happen(1, 2)
    viewers = [airing.view(2) for _ in range(50)]
    airing.happen(3, 4)
    assert [positions(viewer, 4) for viewer in viewers] == [[3, 4]] * 50
    assert airing.encoded == 2
    for viewer in viewers:
        viewer.close()
    assert airing.hub.viewers == 0


@pytest.mark.parametrize("airing", [{"trusted_proxies": 1}, {}], indirect=True)
def test_one_client_takes_no_more_places_than_its_address_may_have(
    airing: Airing, request: pytest.FixtureRequest
) -> None:
    is_behind_proxy = "trusted_proxies" in request.node.callspec.params["airing"]

    def come(address: str) -> Viewer:
        told = {"REMOTE_ADDR": "10.0.0.1", "HTTP_X_FORWARDED_FOR": f"192.0.2.9, {address}"}
        return airing.loop.view(airing.stream, **(told if is_behind_proxy else {**told, "REMOTE_ADDR": address}))

    viewers = [come("192.0.2.1") for _ in range(50)]
    assert all(one.block().startswith(": connected") for one in viewers)
    with pytest.raises(TooManyStreams, match="this address"):
        come("192.0.2.1").block()
    with come("192.0.2.2") as other:
        assert other.block().startswith(": connected")
    viewers.pop().close()
    with come("192.0.2.1") as again:
        assert again.block().startswith(": connected")
    for viewer in viewers:
        viewer.close()
    assert (airing.hub.viewers, airing.hub._of_network) == (0, {})


def test_viewers_from_one_ipv6_network_share_its_places(airing: Airing) -> None:
    viewers = [airing.loop.view(airing.stream, REMOTE_ADDR=f"2001:db8:1:2::{n:x}") for n in range(50)]
    assert all(one.block().startswith(": connected") for one in viewers)
    with pytest.raises(TooManyStreams, match="this address"):
        airing.loop.view(airing.stream, REMOTE_ADDR="2001:db8:1:2::ffff").block()
    for viewer in viewers:
        viewer.close()


def test_a_halt_and_a_lost_database_are_told_within_two_seconds(airing: Airing) -> None:
    airing.status = {"refund": "active"}
    viewer, told = airing.view(), []
    for status, wire in (
        ({"refund": "active"}, '{"refund":"active"}'), ({"refund": "halted"}, '{"refund":"halted"}'), (None, "null"),
        ({"refund": "halted"}, '{"refund":"halted"}'), ({"refund": "active"}, '{"refund":"active"}'),
    ):  # fmt: skip
        airing.status, began = status, time.monotonic()
        while viewer.block() != "event: status\ndata: " + wire + "\n\n":
            pass
        told.append(time.monotonic() - began)
    print(f"N={len(told)}, longest {max(told):.2f} s")
    # A process that stands still delays one of them.
    assert in_time(sorted(told)[-2], 2)
    viewer.close()
    with airing.view() as late:
        assert '{"refund":"active"}' in late.block(), "who comes later is told too"


def test_the_first_viewer_after_a_pause_is_told_no_status_of_before_it(
    airing: Airing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The finding: the hub kept what it read last, and told "active" of agents that were halted hours ago."""
    airing.status = {"refund": "active"}
    with airing.view() as viewer:
        assert viewer.block() == 'event: status\ndata: {"refund":"active"}\n\n'
    assert eventually(lambda: airing.hub._reader is None, within=5)
    assert airing.hub.status == {}
    airing.status, may_read = {"refund": "halted"}, threading.Event()

    def slowly() -> dict[str, str]:
        assert may_read.wait(60)
        return {"refund": "halted"}

    monkeypatch.setattr(airing.hub, "_read_status", slowly)
    airing.happen(1)
    with airing.view() as first:
        assert positions(first, 1) == [1]
        assert airing.hub.status == {}, "nothing was told yet"
        may_read.set()
        assert first.block() == 'event: status\ndata: {"refund":"halted"}\n\n'


def test_viewers_at_different_positions_each_get_exactly_what_they_miss(airing: Airing) -> None:
    airing.happen(*range(1, 31))
    viewers = {seen: airing.view(seen) for seen in (0, 7, 29, 30, None)}
    airing.happen(31)
    for seen, viewer in viewers.items():
        with viewer:
            assert positions(viewer, 31) == list(range(11 if seen is None else seen + 1, 32)), seen


def test_a_viewer_that_takes_nothing_is_let_go_and_comes_back_for_the_rest(
    airing: Airing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "STALLED_SECONDS", 0.5)
    slow, quick = airing.view(0), airing.view(0)
    with slow, quick:
        airing.happen(1)
        assert (positions(slow, 1), positions(quick, 1)) == ([1], [1])
        slow.stick()
        for position in range(2, 12):
            airing.happen(position)
            assert positions(quick, position) == [position]
        assert eventually(lambda: airing.hub.viewers == 1, within=5)
        assert slow.block() == ""
    with airing.view(1) as back:
        assert positions(back, 11) == list(range(2, 12))


@pytest.mark.parametrize("airing", [{"heartbeat_seconds": 0.2}], indirect=True)
def test_a_quiet_viewer_hears_a_beat_and_a_draining_process_ends_the_answer(airing: Airing) -> None:
    with airing.view() as viewer:
        assert viewer.block() == ": heartbeat\n\n"
        airing.stops = True
        while viewer.block():
            pass
    assert airing.hub.viewers == 0


def test_a_flood_is_cut_to_the_latest_and_the_viewer_is_told_how_many_were_left_out(
    airing: Airing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "AT_ONCE", 5)
    airing.stream._pace.left = 5
    with airing.view(0) as viewer:
        airing.happen(*range(1, 401))
        text = ""
        while "id: 400\n" not in text:
            text += viewer.block()
    left_out = sum(int(found) for found in re.findall(r"event: left-out\ndata: (\d+)\n\n", text))
    shown = [int(found) for found in re.findall(r"id: (\d+)\n", text)]
    assert shown == sorted(set(shown))
    assert (len(shown) + left_out, shown[-1]) == (400, 400)
    assert left_out > 300


def test_however_many_are_decided_the_hub_reads_a_bounded_number_and_counts_the_others(airing: Airing) -> None:
    airing.happen(1)
    with airing.view(1) as viewer:
        last, shown, left_out = 1, [], 0
        for _ in range(3):  # each look finds 5,000 more
            airing.happen(*range(last + 1, last + 5_001))
            last += 5_000
            while last not in shown:
                block = viewer.block()
                shown += [int(one) for one in re.findall(r"^id: (\d+)$", block, re.MULTILINE)]
                left_out += sum(int(one) for one in re.findall(r"event: left-out\ndata: (\d+)\n\n", block))
    print(f"N={last - 1} decisions, {len(shown)} shown, at most {airing.most_read} read at once")
    assert len(shown) + left_out == last - 1, "every decision is shown or counted"
    assert shown == sorted(set(shown))
    assert airing.most_read <= hub.CATCH_UP
    assert airing.encoded < 3 * hub.CATCH_UP


def test_the_pace_lets_a_burst_through_and_slows_what_lasts() -> None:
    pace = Pace(asked_at=100.0)
    assert pace.allow(30, 500, 100.0) == 30
    assert pace.allow(30, 500, 100.0) == 10, "the rest of the burst"
    assert pace.allow(150, 500, 101.0) == stream.PER_SECOND // 500 == 10
    assert pace.allow(1000, 1, 101.0) == 0
    assert pace.allow(1000, 1, 102.0) == 1000
    assert pace.allow(1000, 500, 1000.0) == stream.AT_ONCE // 500


def test_a_thousand_viewers_that_come_back_at_once_cost_no_query(airing: Airing) -> None:
    airing.happen(*range(1, 31))
    with airing.view(0) as first:
        assert len(positions(first, 30)) == 30
        airing.hub._read_newest = lambda _: pytest.fail("the database was asked")
        for seen in (None, 12, 30, 99999):
            found, position, left_out = airing.hub.come(seen)
            assert (position, left_out) == ((30, 30), 0)
            assert [one.position for one in found] == ([*range(11, 31)] if seen is None else [*range(seen + 1, 31)])


def test_who_asks_again_and_again_for_what_is_no_longer_kept_costs_no_query_and_nothing_is_encoded_twice(
    airing: Airing,
) -> None:
    """The finding: every `last_seen=0` on a long feed read 500 decisions anew, and the event loop published and encoded each."""
    airing.happen(*range(1, 2 * hub.CATCH_UP + 1))
    with airing.view(0) as first:
        assert positions(first, 2 * hub.CATCH_UP) == [*range(hub.CATCH_UP + 1, 2 * hub.CATCH_UP + 1)]
        airing.hub._read_newest = lambda _: pytest.fail("the database was asked")
        for seen in (0, 1, hub.CATCH_UP - 1) * 10:
            with airing.view(seen) as again:
                assert positions(again, 2 * hub.CATCH_UP)[0] == hub.CATCH_UP + 1
    assert airing.encoded == hub.CATCH_UP


def test_who_comes_back_from_before_what_is_kept_is_told_how_many_of_what_came_since_it_does_not_get(
    airing: Airing,
) -> None:
    airing.happen(*range(1, hub.CATCH_UP + 11))
    with airing.view(hub.CATCH_UP + 10):
        rows = [live_event(one) for one in range(hub.CATCH_UP + 11, 3 * hub.KEPT + 1)]
        airing.hub._keep(Looked(airing.tenant_id, rows, 7, rows[-1].position))
        found, latest, left_out = airing.hub.come(5)
    assert [one.position for one in found] == [*range(3 * hub.KEPT - hub.CATCH_UP + 1, 3 * hub.KEPT + 1)]
    assert (latest[0], left_out) == (3 * hub.KEPT, hub.KEPT - hub.CATCH_UP), "what is known of those between"


def test_for_a_viewer_that_is_gone_before_the_first_look_ended_nothing_is_encoded(airing: Airing) -> None:
    airing.happen(1, 2)
    looks, may_end, read = threading.Event(), threading.Event(), airing.hub._read_newest

    def slowly(most: int) -> Looked:
        looks.set()
        assert may_end.wait(60)
        return read(most)

    airing.hub._read_newest = slowly
    viewer = airing.loop.view(airing.stream)
    assert looks.wait(60)
    viewer.leave()
    may_end.set()
    assert viewer.block() == ""
    assert (airing.encoded, airing.hub.viewers) == (0, 0)


def test_who_fell_behind_what_is_kept_gets_the_latest_and_is_told_how_many_were_left_out(
    airing: Airing, monkeypatch: pytest.MonkeyPatch
) -> None:
    airing.happen(1)
    with airing.view(1) as viewer:
        # All at once, so that none of them was shown before the oldest was no longer kept.
        rows = [live_event(one) for one in range(2, 2 * hub.KEPT + 2)]
        airing.hub._keep(Looked(airing.tenant_id, rows, 0, rows[-1].position))
        airing.happen(*range(2, 2 * hub.KEPT + 2))
        text = ""
        while f"id: {2 * hub.KEPT + 1}\n" not in text:
            text += viewer.block()
    left_out = sum(int(found) for found in re.findall(r"event: left-out\ndata: (\d+)\n\n", text))
    shown = [int(found) for found in re.findall(r"id: (\d+)\n", text)]
    assert shown == [*range(hub.KEPT + 2, 2 * hub.KEPT + 2)]
    assert left_out == hub.KEPT


def test_a_flood_is_read_by_its_latest_and_who_comes_back_is_told_how_many_were_not(airing: Airing) -> None:
    airing.happen(1)
    with airing.view(0) as viewer:
        assert positions(viewer, 1) == [1]
        airing.happen(*range(2, 4 * hub.CATCH_UP + 2))
        assert eventually(lambda: airing.hub.latest[0] == 4 * hub.CATCH_UP + 1, within=5)
        assert 0 < airing.most_read <= hub.CATCH_UP
        found, latest, left_out = airing.hub.come(1)
    assert latest == (4 * hub.CATCH_UP + 1, 4 * hub.CATCH_UP + 1), "each is counted, read or not"
    assert found[-1].position == latest[0]
    assert len(found) + left_out == 4 * hub.CATCH_UP


def test_a_stream_of_another_tenant_begins_anew_and_shows_nothing_of_the_one_before(airing: Airing) -> None:
    airing.happen(*range(1, 31))
    with airing.view() as viewer:
        assert positions(viewer, 30) == [*range(11, 31)]
        airing.tenant_id, airing.rows = uuid.UUID(int=8), []
        airing.happen(5, 6)
        while viewer.block():
            pass
        with airing.view() as newcomer, airing.view(30) as returned:
            assert positions(newcomer, 6) == [5, 6]
            airing.happen(7)
            assert positions(newcomer, 7) == [7], "which the one before had passed long ago"
            assert positions(returned, 7) == [7]


def test_a_stream_says_first_whose_decisions_it_has(airing: Airing) -> None:
    airing.tenant_label = "acme"
    airing.happen(1)
    with airing.view() as viewer:
        assert viewer.block() == 'event: tenant\ndata: "acme"\n\n'
        assert positions(viewer, 1) == [1]
        airing.tenant_id, airing.tenant_label = uuid.UUID(int=8), "public-demo"
        while viewer.block():
            pass
        with airing.view(1) as returned:
            assert returned.block() == 'event: tenant\ndata: "public-demo"\n\n'
            airing.tenant_label = "renamed"
            assert eventually(lambda: airing.hub.tenant_label == "renamed", within=5)


def test_a_stream_of_a_feed_that_was_restored_ends_and_tells_that_what_it_showed_is_gone(airing: Airing) -> None:
    airing.happen(*range(1, 31))
    with airing.view() as viewer:
        assert positions(viewer, 30) == [*range(11, 31)]
        airing.rows, airing.history = airing.rows[:20], 1
        airing.happen(21)
        blocks = [viewer.block()]
        while blocks[-1]:
            blocks.append(viewer.block())
        assert blocks[-2].encode() == stream.ANEW
    with airing.view(20) as returned:
        assert positions(returned, 21) == [21], "which the one before had passed"


def test_who_comes_back_from_behind_the_end_of_the_feed_is_told_that_what_it_has_is_gone(airing: Airing) -> None:
    airing.happen(*range(1, 21))
    with airing.view(30) as ahead, airing.view(20) as at_the_end:
        while ahead.block().encode() != stream.ANEW:
            pass
        airing.happen(21)
        told = ""
        while "id: 21\n" not in told:
            told += at_the_end.block()
        assert stream.ANEW.decode() not in told


@pytest.mark.parametrize("airing", [{"heartbeat_seconds": 0.2}], indirect=True)
def test_a_page_that_is_ahead_of_the_stream_is_not_taken_for_one_of_a_feed_that_is_gone(airing: Airing) -> None:
    """It was made after the stream's last look, of decisions that the stream has not read yet."""
    airing.happen(*range(1, 21))
    with airing.view(20):
        airing.happen(*range(21, 31))
        with airing.view(30) as ahead:
            told = ""
            while told.count(": heartbeat") < 10:
                told += ahead.block()
            assert stream.ANEW.decode() not in told


def test_open_files_are_asked_for_and_a_machine_that_has_too_few_is_refused_by_name() -> None:
    require_open_files(64, "SENTINEL_CONSOLE_MAX_STREAMS")
    with pytest.raises(CannotServe, match="SENTINEL_CONSOLE_MAX_STREAMS"):
        require_open_files(1 << 40, "SENTINEL_CONSOLE_MAX_STREAMS")


@pytest.mark.parametrize(
    ("query", "seen"), [("last_seen=7", 7), ("last_seen=7&" + "&" * 25, None), ("last_seen=x", None), ("", None)]
)
def test_a_query_that_cannot_be_read_asks_for_what_is_new(query: str, seen: int | None) -> None:
    assert stream.last_seen({"QUERY_STRING": query}) == seen
