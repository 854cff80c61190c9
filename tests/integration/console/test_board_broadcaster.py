"""The public board's broadcaster: costs little a viewer, misses and doubles nothing."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from ops_console.board import broadcast, hub
from ops_console.board.broadcast import Broadcaster, Pace
from ops_console.board.events import LiveEvent
from ops_console.board.hub import Hub
from sentinel.core.errors import EngineUnavailable
from sentinel.server import CannotServe, require_open_files
from tests.acceptance.places import eventually
from tests.feeds import row


class Airing:
    """A hub over a list, its broadcaster, and viewers at the other end of socket pairs."""

    def __init__(self, **how: Any) -> None:
        self.status: dict[str, str] | None = {}
        self.rows: list[LiveEvent] = []
        self.encoded: list[int] = []
        self.stops = False
        self.hub = Hub(
            lambda after, most: [one for one in self.rows if one.position > after][:most],
            lambda most: self.rows[::-1][:most], read_status=self.read_status, max_viewers=1000, stopping=lambda: self.stops,
        )  # fmt: skip
        self.broadcaster = Broadcaster(self.hub, self.encode, **how)

    def read_status(self) -> dict[str, str]:
        if self.status is None:
            raise EngineUnavailable("the database is away")
        return self.status

    def encode(self, one: LiveEvent) -> bytes:
        self.encoded.append(one.position)
        return b"id: %d\n\n" % one.position

    def view(self, last_seen: int | None = None, is_chunked: bool = False) -> socket.socket:
        ours, theirs = socket.socketpair()
        self.hub.join()
        rows, position = self.hub.come(last_seen)
        self.broadcaster.take(ours, is_chunked=is_chunked, first=b"".join(map(self.encode, rows)), position=position,
                              leave=self.hub.leave)  # fmt: skip
        theirs.settimeout(5)
        return theirs

    def happen(self, *positions: int) -> None:
        self.rows.extend(row(position) for position in positions)


@pytest.fixture
def airing(request: pytest.FixtureRequest) -> Iterator[Airing]:
    made = Airing(**getattr(request, "param", {}))
    yield made
    made.stops = True
    thread = made.broadcaster._thread
    if thread is not None:
        thread.join(timeout=5)
        assert not thread.is_alive()


def positions(viewer: socket.socket, last: int, seconds: float = 5.0) -> list[int]:
    """The ids a viewer gets, up to `last`."""
    text, until = b"", time.monotonic() + seconds
    while b"id: %d\n\n" % last not in text and time.monotonic() < until:
        more = viewer.recv(65536)
        if not more:
            break
        text += more
    return [int(found) for found in re.findall(rb"id: (\d+)\n\n", text)]


def test_what_is_new_is_encoded_once_for_all_viewers_and_takes_one_thread(airing: Airing) -> None:
    airing.happen(1, 2)
    viewers = [airing.view(2) for _ in range(50)]
    airing.happen(3, 4)
    assert [positions(viewer, 4) for viewer in viewers] == [[3, 4]] * 50
    assert airing.encoded == [3, 4]
    for viewer in viewers:
        viewer.close()
    assert eventually(lambda: airing.hub.viewers == 0, within=5)


def test_a_halt_and_a_lost_database_are_told_within_two_seconds(airing: Airing) -> None:
    airing.status = {"refund": "active"}
    viewer, told = airing.view(), []
    for status, wire in (
        ({"refund": "active"}, b'{"refund":"active"}'), ({"refund": "halted"}, b'{"refund":"halted"}'), (None, b"null"),
        ({"refund": "halted"}, b'{"refund":"halted"}'), ({"refund": "active"}, b'{"refund":"active"}'),
    ):  # fmt: skip
        airing.status, began, got = status, time.monotonic(), b""
        while not got.endswith(b"event: status\ndata: " + wire + b"\n\n"):
            got += viewer.recv(4096)
        told.append(time.monotonic() - began)
    print(f"N={len(told)}, longest {max(told):.2f} s")
    assert max(told) < 2
    viewer.close()
    with airing.view() as late:
        assert b'{"refund":"active"}' in late.recv(4096), "who comes later is told too"


def test_viewers_at_different_positions_each_get_exactly_what_they_miss(airing: Airing) -> None:
    airing.happen(*range(1, 31))
    viewers = {seen: airing.view(seen) for seen in (0, 7, 29, 30, None)}
    airing.happen(31)
    for seen, viewer in viewers.items():
        with viewer:
            assert positions(viewer, 31) == list(range(11 if seen is None else seen + 1, 32)), seen


def test_a_viewer_that_does_not_keep_up_is_let_go_and_comes_back_for_the_rest(
    airing: Airing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broadcast, "MOST_UNSENT", 100_000)
    big = b"x" * 60_000
    airing.broadcaster._encode = lambda one: b"id: %d\n\n" % one.position + (big if one.position > 1 else b"")
    slow, quick = airing.view(0), airing.view(0)
    with slow, quick:
        for position in range(1, 12):
            airing.happen(position)
            assert positions(quick, position) == [position]
        assert eventually(lambda: airing.hub.viewers == 1, within=5)
        seen = positions(slow, 99)
        assert seen == list(range(1, len(seen) + 1))
        assert len(seen) < 11
    airing.broadcaster._encode = airing.encode
    with airing.view(seen[-1]) as back:
        assert positions(back, 11) == list(range(seen[-1] + 1, 12))


@pytest.mark.parametrize("airing", [{"heartbeat_seconds": 0.2}], indirect=True)
def test_a_quiet_viewer_hears_a_beat_and_a_draining_process_ends_the_answer(airing: Airing) -> None:
    with airing.view(is_chunked=True) as viewer:
        assert viewer.recv(100) == b"d\r\n: heartbeat\n\n\r\n"
        airing.stops = True
        text = b""
        while more := viewer.recv(100):
            text += more
        assert text.endswith(b"0\r\n\r\n")
    assert eventually(lambda: airing.hub.viewers == 0, within=5)


def test_a_flood_is_cut_to_the_latest_and_the_viewer_is_told_how_many_were_left_out(
    airing: Airing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broadcast, "AT_ONCE", 5)
    airing.broadcaster._pace.left = 5
    with airing.view(0) as viewer:
        airing.happen(*range(1, 401))
        text = b""
        while b"id: 400\n\n" not in text:
            text += viewer.recv(65536)
    left_out = sum(int(found) for found in re.findall(rb"event: left-out\ndata: (\d+)\n\n", text))
    shown = [int(found) for found in re.findall(rb"id: (\d+)\n\n", text)]
    assert shown == sorted(set(shown))
    assert (len(shown) + left_out, shown[-1]) == (400, 400)
    assert left_out > 300


def test_the_pace_lets_a_burst_through_and_slows_what_lasts() -> None:
    pace = Pace(asked_at=100.0)
    assert pace.allow(30, 500, 100.0) == 30
    assert pace.allow(30, 500, 100.0) == 10, "the rest of the burst"
    assert pace.allow(150, 500, 101.0) == broadcast.PER_SECOND // 500 == 20
    assert pace.allow(1000, 1, 101.0) == 0
    assert pace.allow(1000, 1, 102.0) == 1000
    assert pace.allow(1000, 500, 1000.0) == broadcast.AT_ONCE // 500


def test_a_thousand_viewers_that_come_back_at_once_cost_no_query(airing: Airing) -> None:
    airing.happen(*range(1, 31))
    with airing.view(0) as first:
        assert len(positions(first, 30)) == 30
        airing.hub._read_newest = lambda _: pytest.fail("the database was asked")
        for seen in (None, 12, 30, 99999):
            found, position = airing.hub.come(seen)
            assert position == 30
            assert [one.position for one in found] == ([*range(11, 31)] if seen is None else [*range(seen + 1, 31)])


def test_who_fell_behind_what_is_kept_is_let_go(airing: Airing, monkeypatch: pytest.MonkeyPatch) -> None:
    airing.happen(1)
    with airing.view(1) as viewer:
        with airing.hub._news:
            airing.hub._floor, airing.hub._position = 2000, 3000
        airing.happen(3001)
        assert viewer.recv(100) == b""
    assert hub.KEPT < 2000


def test_open_files_are_asked_for_and_a_machine_that_has_too_few_is_refused_by_name() -> None:
    require_open_files(64, "SENTINEL_CONSOLE_MAX_STREAMS")
    with pytest.raises(CannotServe, match="SENTINEL_CONSOLE_MAX_STREAMS"):
        require_open_files(1 << 40, "SENTINEL_CONSOLE_MAX_STREAMS")
