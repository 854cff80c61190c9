"""The console as a process with more viewers than threads."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

from tests.support.busy import long_enough
from tests.support.logins import public_urls
from tests.support.ports import free_port, listens
from tests.support.served_programs import clean_env, end, eventually, module

THREADS, VIEWERS = 4, 40


class Watching:
    """A viewer over HTTP: reads events as (position, event id), remembers the last position."""

    def __init__(self, port: int, last_seen: int | None = None) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
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
            elif line.startswith(b"data: ") and "event_id" in (event := json.loads(line[6:])):
                found.append((position, event["event_id"]))
        return found

    def close(self) -> None:
        self.answer.close()
        self.connection.close()


@contextlib.contextmanager
def console(fixtures: Any, port: int) -> Iterator[subprocess.Popen[bytes]]:
    env = clean_env(
        **public_urls(fixtures.url), SENTINEL_BOARD_PORT=str(port), SENTINEL_BOARD_THREADS=str(THREADS),
        SENTINEL_CONSOLE_MAX_STREAMS=str(VIEWERS + 1), SENTINEL_BOARD_MAX_CONNECTIONS_PER_ADDRESS="1000",
        SENTINEL_INSECURE_COOKIES="1", SENTINEL_REQUIRE_SECOND_FACTOR="nobody",
    )  # fmt: skip
    # A viewer who held up its end would do so for all of this.
    command = module("ops_console", "--only", "public", "--graceful-seconds", "100")
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        assert eventually(lambda: listens(port), within=30)
        yield process
    finally:
        end(process)


def get(port: int, path: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    with contextlib.closing(connection):
        connection.request("GET", path)
        return connection.getresponse().status


def test_ten_times_as_many_viewers_as_threads_miss_nothing_and_lock_nobody_out(fixtures: Any) -> None:
    port = free_port()

    def happen(count: int) -> list[str]:
        made = [str(fixtures.guard("10.00").decision_event_id) for _ in range(count)]
        fixtures.publish()
        return made

    before = happen(3)
    with contextlib.ExitStack() as open_, console(fixtures, port) as process:

        def watch(last_seen: int | None = None) -> Watching:
            return open_.enter_context(contextlib.closing(Watching(port, last_seen)))

        viewers = [watch() for _ in range(VIEWERS)]
        assert {get(port, path) for path in ("/healthz", "/live", "/verify/")} == {200}
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

        process.send_signal(signal.SIGTERM)
        assert viewers[2].answer.read().endswith(b"\n\n")
        assert process.wait(timeout=long_enough(4)) == 0
