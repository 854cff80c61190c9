"""Who takes nothing of what piled up is closed; who takes something, or everything, is not. The clock is the test's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from sentinel.platform.serving.connection_flow import TAKE_SECONDS, ConnectionFlow


class Clock:
    """A loop's timers, of which at most one runs."""

    def __init__(self) -> None:
        self.due: list[Clock] = []

    def call_later(self, seconds: float, call: Callable[..., None], *arguments: Any) -> Clock:
        assert seconds == TAKE_SECONDS and self.due == [], "one timer, of the documented length"
        self.ring = lambda: call(*arguments)
        self.due.append(self)
        return self

    def cancel(self) -> None:
        self.due.clear()

    def pass_deadline(self) -> None:
        self.due.clear()
        self.ring()


class Pile:
    """A transport with so many bytes that its client did not take yet."""

    def __init__(self, left: int) -> None:
        self.left, self.is_aborted, self.is_reading = left, False, True

    def get_extra_info(self, name: str) -> None:
        return None

    def get_write_buffer_size(self) -> int:
        return self.left

    def abort(self) -> None:
        self.is_aborted = True

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True


def flow_of(pile: Pile, clock: Clock, has_waiting: Callable[[], bool] = lambda: False) -> ConnectionFlow:
    return ConnectionFlow(cast(Any, pile), has_waiting, cast(Any, clock))


def test_who_takes_something_before_each_deadline_is_kept_and_who_then_takes_nothing_is_closed() -> None:
    pile, clock = Pile(1000), Clock()
    flow_of(pile, clock).pause_writing()
    for _ in range(9):
        pile.left -= 1
        clock.pass_deadline()
        assert not pile.is_aborted
    clock.pass_deadline()
    assert pile.is_aborted
    assert clock.due == []


def test_who_takes_everything_has_no_deadline_any_more() -> None:
    pile, clock = Pile(1000), Clock()
    flow = flow_of(pile, clock)
    for _ in range(3):
        flow.pause_writing()
        assert clock.due == [clock]
        flow.resume_writing()
        assert clock.due == []
    assert not pile.is_aborted


def test_nothing_more_is_read_while_requests_wait() -> None:
    pile, waiting = Pile(0), [1, 2]
    flow = flow_of(pile, Clock(), lambda: bool(waiting))
    flow.pause_reading()
    while waiting:
        flow.resume_reading()
        assert not pile.is_reading
        waiting.pop()
    flow.resume_reading()
    assert pile.is_reading
