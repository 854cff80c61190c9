"""What /readyz says is found once for all who ask at about the same time."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from sentinel.platform.http.readiness import REMEMBERED_SECONDS, Readiness

SECONDS = 30


def test_what_was_found_is_kept_for_a_moment_and_then_found_anew() -> None:
    now, found = [100.0], [{"database": True}, {"database": False}, {"database": True}]
    readiness = Readiness(lambda: found.pop(0), now=lambda: now[0])
    for _ in range(50):
        assert readiness.checks == {"database": True}
        now[0] += REMEMBERED_SECONDS / 100
    now[0] += REMEMBERED_SECONDS
    assert readiness.checks == {"database": False}, "what fails is kept as long, and no longer"
    now[0] += REMEMBERED_SECONDS
    assert readiness.checks == {"database": True}
    assert found == []


def test_who_asks_while_the_checks_are_made_waits_for_what_they_find() -> None:
    begun, may_end = threading.Event(), threading.Event()
    looks: list[int] = []

    def check() -> dict[str, bool]:
        looks.append(1)
        begun.set()
        assert may_end.wait(SECONDS)
        return {"database": True}

    readiness = Readiness(check, now=lambda: 0.0)
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(lambda: readiness.checks) for _ in range(8)]
        assert begun.wait(SECONDS)
        may_end.set()
        assert [one.result(SECONDS) for one in asked] == [{"database": True}] * 8
    assert len(looks) == 1
