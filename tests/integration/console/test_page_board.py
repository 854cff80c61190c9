"""The public board's pages and its broadcaster: works as a plain page, costs little a viewer, misses and doubles nothing."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ops_console.board import broadcast, hub
from ops_console.board.broadcast import Broadcaster, Pace
from ops_console.board.events import policy_label
from ops_console.board.figures import Counts, percentile
from ops_console.board.hub import Hub
from sentinel.core.canonical import canonical_json
from sentinel.core.proof import pack_hash
from sentinel.server import CannotServe, require_open_files
from sentinel.services.verify_proof import verify_proof
from sentinel.store.feed import FeedRow, MinuteCount
from tests.acceptance.places import clean_env, end, eventually, free_port, listens, module

# Pages -------------------------------------------------------------------------------------------------------------------

PAGES = ("/live", "/live/figures", "/live/widget", "/verify/")


def test_the_board_is_a_plain_page_that_tells_everything_without_a_script(world: Any) -> None:
    recorded = [world.guard(value) for value in ("10.00", "200.00", "2000.00")]
    world.publish()
    client = world.app().test_client()
    page = client.get("/live").get_data(as_text=True)
    for text in ("Live decisions", "The last hour", "The last day", "3 decisions", "Allowed", "A person decides", "Denied",
                 "What is hidden, and why", "Retail Refund Policy v1", "public-demo", "within_policy_limit", "10 USD",
                 '<noscript><meta http-equiv="refresh"', "/live/widget&quot;"):  # fmt: skip
        assert text in page, text
    for one in recorded:
        assert f'href="/verify/{json.loads(one.pack)["proof_id"]}"' in page
    assert re.findall(r"<script(?![^>]*\bsrc=)|\sstyle=|\son[a-z]+=|javascript:", page) == []
    assert re.findall(r'(?:src|href)="(?:https?:)?//', page) == []


def test_every_public_page_may_be_kept_a_moment_and_is_asked_again_by_its_tag(world: Any) -> None:
    proof = json.loads(world.guard("10.00").pack)["proof_id"]
    world.publish()
    client = world.app().test_client()
    for path in (*PAGES, f"/verify/{proof}", f"/verify/{proof}.json"):
        answer, head = client.get(path), client.head(path)
        assert answer.status_code == head.status_code == 200, path
        assert answer.headers["Cache-Control"].startswith("public, max-age="), path
        assert head.data == b""
        assert {"Set-Cookie"} & set(answer.headers.keys()) == set()
    for path in (f"/verify/{proof}", f"/verify/{proof}.json", "/verify/"):
        again = client.get(path, headers={"If-None-Match": client.get(path).headers["ETag"]})
        assert (again.status_code, again.data) == (304, b""), path


def test_only_the_widget_may_stand_in_a_frame_and_it_sets_no_cookie(world: Any) -> None:
    world.guard("10.00")
    world.publish()
    client = world.app().test_client()
    widget = client.get("/live/widget")
    assert "frame-ancestors *" in widget.headers["Content-Security-Policy"]
    assert "X-Frame-Options" not in widget.headers
    assert "Set-Cookie" not in widget.headers
    assert len(widget.data) < 10_000
    for path in (
        "/live",
        "/live/figures",
        "/verify/",
        "/verify/pf_nothing",
        "/ops/sign-in",
        "/live/widget/x",
        "/nothing",
    ):
        headers = client.get(path).headers
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"], path
        assert headers["X-Frame-Options"] == "DENY", path
    assert client.post("/live/widget").headers["X-Frame-Options"] == "DENY"


def test_a_proof_has_a_page_with_its_bytes_and_how_to_check_it_by_hand(world: Any) -> None:
    recorded = world.guard("10.00")
    pack = {**json.loads(recorded.pack), "hash": recorded.pack_hash}
    client = world.app(origin="https://console.example").test_client()
    page = client.get(f"/verify/{pack['proof_id']}").get_data(as_text=True)
    body = canonical_json({name: value for name, value in pack.items() if name != "hash"})
    assert body.replace('"', "&#34;") in page
    assert recorded.pack_hash in page
    assert f"curl -s https://console.example/verify/{pack['proof_id']}.json | jq -cSj" in page
    assert client.get(f"/verify/{pack['proof_id']}.json").json == pack
    for wrong in ("pf_nothing", "pf_" + "0" * 32, "<script>", "%00", "x.json.json"):
        answer = client.get(f"/verify/{wrong}")
        assert answer.status_code == 404, wrong
        assert "<script>" not in answer.get_data(as_text=True)


def test_a_proof_of_which_anything_was_changed_fails(world: Any) -> None:
    recorded = world.guard("10.00")
    pack = {**json.loads(recorded.pack), "hash": recorded.pack_hash}
    assert verify_proof(pack).intact
    for name in pack.keys() - {"hash", "proof_id"}:
        changed = {**pack, name: {"value": 11, "currency": "USD"} if name == "amount" else "x"}
        assert not verify_proof(changed).intact, name
        assert not verify_proof({key: value for key, value in pack.items() if key != name}).intact, name
    # Twin: a hash made anew fits again; that is why the page compares with what is on record.
    forged = {**pack, "decision": "DENY"}
    assert verify_proof({**forged, "hash": pack_hash(forged)}).intact


# Figures -----------------------------------------------------------------------------------------------------------------


def test_the_figures_count_each_decision_once_and_many_viewers_cost_one_count(world: Any) -> None:
    app = world.app()
    asked: list[int] = []
    client = app.test_client()
    for value in ("10.00", "11.00", "200.00"):
        world.guard(value)
    world.publish()
    assert "3 decisions" in client.get("/live/figures").get_data(as_text=True)
    real = app.extensions["console"].board.pool.connection

    def counted(*arguments: Any, **named: Any) -> Any:
        asked.append(1)
        return real(*arguments, **named)

    app.extensions["console"].board.pool.connection = counted
    for _ in range(200):
        assert client.get("/live/figures").status_code == 200
    assert len(asked) < 20


NOW = datetime(2026, 5, 4, 12, 0, 30, tzinfo=UTC)


class Decided:
    """A feed in memory: (position, minutes ago, decision, latency)."""

    def __init__(self, rows: list[tuple[int, int, str, int]]) -> None:
        self.rows, self.reads, self.seconds = rows, 0, 0.0

    def read(self, after: int, limit: int) -> list[MinuteCount]:
        self.reads += 1
        found = sorted(row for row in self.rows if row[0] > after)[:limit]
        return [
            MinuteCount(NOW - timedelta(minutes=ago, seconds=30), decision, ms, 1, at)
            for at, ago, decision, ms in found
        ]

    def counts(self, start: int = 0) -> Counts:
        return Counts(lambda _: start, self.read, now=lambda: NOW, clock=lambda: self.seconds)


def test_the_figures_tell_the_hour_and_the_day_apart_and_grow_by_what_is_new() -> None:
    feed = Decided(
        [(1, 1500, "ALLOW", 9), (2, 90, "ALLOW", 4), (3, 5, "ALLOW", 1), (4, 5, "DENY", 7), (5, 4, "ALLOW", 3)]
    )
    counts = feed.counts()
    first = counts.current()
    assert [(one.decision, one.count) for one in first.hour] == [("ALLOW", 2), ("APPROVAL_REQUIRED", 0), ("DENY", 1)]
    assert [(one.decision, one.count) for one in first.day] == [("ALLOW", 3), ("APPROVAL_REQUIRED", 0), ("DENY", 1)]
    assert (first.hour[0].median_ms, first.hour[0].p99_ms, first.hour[1].median_ms) == (1, 3, None)
    feed.rows.append((6, 0, "DENY", 8))
    assert counts.current() is first
    feed.seconds = 6.0
    assert counts.current().hour[2].count == 2
    assert feed.reads == 2


def test_a_long_day_is_counted_in_steps_and_it_is_said_until_it_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ops_console.board.figures.AT_ONCE", 10)
    feed = Decided([(number, 5, "ALLOW", 1) for number in range(1, 26)])

    def slow(after: int, limit: int) -> list[MinuteCount]:
        feed.seconds += 1.0
        return feed.read(after, limit)

    counts = Counts(lambda _: 0, slow, now=lambda: NOW, clock=lambda: feed.seconds)
    seen = []
    for _ in range(3):
        found = counts.current()
        seen.append((found.is_complete, found.day[0].count))
        feed.seconds += 1.0
    assert seen == [(False, 10), (False, 20), (True, 25)]


def test_percentiles_are_of_the_nearest_rank() -> None:
    from collections import Counter

    assert percentile(Counter({1: 50, 2: 49, 900: 1}), 0.5) == 1
    assert percentile(Counter({1: 50, 2: 49, 900: 1}), 0.99) == 2
    assert percentile(Counter({1: 50, 2: 48, 900: 2}), 0.99) == 900
    assert percentile(Counter(), 0.5) is None


def test_a_policy_label_that_is_none_is_not_shown() -> None:
    assert policy_label(None) == ""
    assert policy_label(row(1, policy_label="Refunds v2")) == "Refunds v2"
    assert policy_label(row(1, policy_label="<b>ann@shop.example\u202e")) == ""


# The broadcaster -----------------------------------------------------------------------------------------------------------


def row(position: int, **pack: Any) -> FeedRow:
    return FeedRow(position, uuid.UUID(int=position), "an-agent", json.dumps(pack), NOW)


class Airing:
    """A hub over a list, its broadcaster, and viewers at the other end of socket pairs."""

    def __init__(self, **how: Any) -> None:
        self.rows: list[FeedRow] = []
        self.encoded: list[int] = []
        self.stops = False
        self.hub = Hub(
            lambda after, most: [one for one in self.rows if one.position > after][:most],
            lambda most: self.rows[::-1][:most], max_viewers=1000, stopping=lambda: self.stops,
        )  # fmt: skip
        self.broadcaster = Broadcaster(self.hub, self.encode, **how)

    def encode(self, one: FeedRow) -> bytes:
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
    assert pace.allow(150, 500, 100.0) == 150
    assert pace.allow(150, 500, 100.0) == 50
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


# As a process --------------------------------------------------------------------------------------------------------------

THREADS, VIEWERS = 4, 40


class Watching:
    """A viewer over HTTP: reads events as (position, event id), remembers the last position."""

    def __init__(self, port: int, last_seen: int | None = None) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        headers = {} if last_seen is None else {"Last-Event-ID": str(last_seen)}
        self.connection.request("GET", "/ops/api/live/stream", headers=headers)
        self.answer = self.connection.getresponse()
        assert self.answer.status == 200

    def events(self, count: int) -> list[tuple[int, str]]:
        found, position = [], 0
        while len(found) < count:
            line = self.answer.readline()
            assert line, "the stream ended"
            if line.startswith(b"id: "):
                position = int(line[4:])
            elif line.startswith(b"data: "):
                found.append((position, json.loads(line[6:])["event_id"]))
        return found

    def close(self) -> None:
        self.answer.close()
        self.connection.close()


@contextlib.contextmanager
def console(world: Any, port: int) -> Iterator[subprocess.Popen[bytes]]:
    env = clean_env(
        SENTINEL_DATABASE_URL=world.url, SENTINEL_CONSOLE_PORT=str(port), SENTINEL_CONSOLE_THREADS=str(THREADS),
        SENTINEL_CONSOLE_MAX_STREAMS=str(VIEWERS + 1), SENTINEL_CONSOLE_PROCESSES="1", SENTINEL_INSECURE_COOKIES="1",
    )  # fmt: skip
    process = subprocess.Popen(module("ops_console"), env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        assert eventually(lambda: listens(port), within=30)
        yield process
    finally:
        end(process)


def get(port: int, path: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    with contextlib.closing(connection):
        connection.request("GET", path)
        return connection.getresponse().status


def test_ten_times_as_many_viewers_as_threads_miss_nothing_and_lock_nobody_out(world: Any) -> None:
    port = free_port()

    def happen(count: int) -> list[str]:
        made = [str(world.guard("10.00").decision_event_id) for _ in range(count)]
        world.publish()
        return made

    before = happen(3)
    with contextlib.ExitStack() as open_, console(world, port) as process:

        def watch(last_seen: int | None = None) -> Watching:
            return open_.enter_context(contextlib.closing(Watching(port, last_seen)))

        viewers = [watch() for _ in range(VIEWERS)]
        assert {get(port, path) for path in ("/healthz", "/live", "/ops/sign-in")} == {200}
        seen = [viewer.events(3) for viewer in viewers]
        assert [[event for _, event in one] for one in seen] == [before] * VIEWERS
        first = happen(2)
        assert [[event for _, event in viewer.events(2)] for viewer in viewers] == [first] * VIEWERS

        # One connection breaks; what happens meanwhile is exactly what it gets when it comes back.
        last = seen[0][-1][0]
        viewers[0].close()
        missed = happen(4)
        back = watch(last)
        assert [event for _, event in back.events(6)] == first + missed
        after = happen(1)
        assert [event for _, event in back.events(1)] == after
        assert [event for _, event in viewers[1].events(5)] == missed + after

        # Its place came free: one more may come, the next is refused, and may when somebody leaves.
        extra = watch()
        assert get(port, "/ops/api/live/stream") == 503
        extra.close()
        assert eventually(lambda: get(port, "/ops/api/live/stream") == 200, within=5)

        asked_at = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert viewers[2].answer.read().endswith(b"\n\n")
        assert process.wait(timeout=5) == 0
        assert time.monotonic() - asked_at < 4
