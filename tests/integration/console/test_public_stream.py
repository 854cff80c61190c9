"""The board's stream: many can watch, nothing is missed or seen twice, and one reader serves them all."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from ops_console.board.events import Looked
from ops_console.board.hub import POLL_SECONDS
from ops_console.board.stream import PATH
from sentinel.core.errors import TooManyStreams
from tests.support.served_programs import eventually
from tests.support.streaming import Loop, Viewer


@pytest.fixture
def loop() -> Iterator[Loop]:
    with Loop() as made:
        yield made


def viewing(loop: Loop, app: Any, last_seen: str | None = None) -> Viewer:
    """Somebody who watches; has been greeted."""
    viewer = loop.view(app.edge.streams(PATH), **({"HTTP_LAST_EVENT_ID": last_seen} if last_seen else {}))
    assert viewer.block().startswith(": connected")
    return viewer


def events_of(loop: Loop, app: Any, count: int, last_seen: str | None = None) -> list[tuple[int, str]]:
    """The first `count` events as (position, event id)."""
    with viewing(loop, app, last_seen) as viewer:
        return next_events(viewer, count)


def next_events(viewer: Viewer, count: int) -> list[tuple[int, str]]:
    """The next `count` events that somebody who watches is sent."""
    found: list[tuple[int, str]] = []
    while len(found) < count:
        block = viewer.block()
        assert block, "the stream ended"
        match = re.fullmatch(r"id: (\d+)\ndata: (\{.*\})\n\n", block)
        if match:
            found.append((int(match[1]), json.loads(match[2])["event_id"]))
    return found


def test_a_viewer_gets_the_latest_then_what_happens(fixtures: Any, loop: Loop) -> None:
    made = [str(fixtures.guard("10.00").decision_event_id) for _ in range(2)]
    fixtures.publish()
    with viewing(loop, fixtures.app()) as viewer:
        latest = next_events(viewer, 2)
        made.append(str(fixtures.guard("10.00").decision_event_id))
        fixtures.publish()
        assert [event_id for _, event_id in latest + next_events(viewer, 1)] == made


def test_a_viewer_that_comes_back_misses_nothing_and_sees_nothing_twice(fixtures: Any, loop: Loop) -> None:
    made = [str(fixtures.guard("10.00").decision_event_id) for _ in range(30)]
    fixtures.publish()
    app = fixtures.app()
    first = events_of(loop, app, 5, "0")
    rest = events_of(loop, app, 25, str(first[-1][0]))
    assert [event_id for _, event_id in first + rest] == made


def test_a_position_nobody_was_given_does_not_silence_the_others(fixtures: Any, loop: Loop) -> None:
    app = fixtures.app()
    ahead = viewing(loop, app, "999999999999")
    made = str(fixtures.guard("10.00").decision_event_id)
    fixtures.publish()
    assert events_of(loop, app, 1, "0")[0][1] == made
    assert ahead.block()
    ahead.close()


def test_the_board_reads_the_latest_decisions_and_counts_the_others(fixtures: Any) -> None:
    made = [str(fixtures.guard("10.00").decision_event_id) for _ in range(5)]
    fixtures.publish()
    board = fixtures.app().flask.extensions["console"].board
    looked = board.after(0, 2)
    assert ([one.fields["event_id"] for one in looked.events], looked.left_out) == (made[-2:], 3)
    nothing = Looked(fixtures.tenant_id, [], 0, looked.position, "public-demo")
    assert board.after(looked.position, 2) == nothing


def test_many_viewers_cost_one_reader(fixtures: Any, loop: Loop) -> None:
    app, asked = fixtures.app(), []
    hub, real = app.flask.extensions["console"].hub, app.flask.extensions["console"].hub._read_after
    hub._read_after = lambda position, limit: asked.append(threading.current_thread().name) or real(position, limit)
    made: list[list[tuple[int, str]]] = []
    viewers = [threading.Thread(target=lambda: made.append(events_of(loop, app, 3))) for _ in range(10)]
    began = time.monotonic()
    for viewer in viewers:
        viewer.start()
    assert eventually(lambda: hub.viewers == 10, within=20)
    for _ in range(3):
        fixtures.guard("10.00")
    fixtures.publish()
    for viewer in viewers:
        viewer.join(timeout=60)
    assert len(made) == 10
    assert len({tuple(events) for events in made}) == 1
    assert set(asked) == {"live-feed"}
    # It looks each POLL_SECONDS, and at once for who comes; ten readers would look ten times as often.
    assert len(asked) <= 4 + (time.monotonic() - began) / POLL_SECONDS


def test_streams_are_bounded_and_a_place_comes_back(fixtures: Any, loop: Loop) -> None:
    app = fixtures.app(max_streams=2)
    held = [viewing(loop, app) for _ in range(2)]
    with pytest.raises(TooManyStreams):
        viewing(loop, app)
    held[0].close()
    third = viewing(loop, app)
    third.close()
    held[1].close()
    assert app.flask.extensions["console"].hub.viewers == 0


def test_the_reader_stops_when_nobody_watches(fixtures: Any, loop: Loop) -> None:
    fixtures.guard("10.00")
    fixtures.publish()
    app = fixtures.app()
    events_of(loop, app, 1)
    assert eventually(lambda: app.flask.extensions["console"].hub._reader is None, within=5)
