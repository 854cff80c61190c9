"""Taking connections off a listener: what happens where the system has no room for another one."""

from __future__ import annotations

import errno
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from sentinel.platform.serving.event_worker import _Acceptor


class Loop:
    """Remembers who reads and what is due later."""

    def __init__(self) -> None:
        self.readers: list[int] = []
        self.later: list[tuple[float, Callable[[], None]]] = []

    def add_reader(self, number: int, _: Callable[[], None]) -> None:
        self.readers.append(number)

    def remove_reader(self, number: int) -> None:
        self.readers.remove(number)

    def call_later(self, seconds: float, call: Callable[[], None]) -> SimpleNamespace:
        self.later.append((seconds, call))
        return SimpleNamespace(cancel=self.later.clear)


class Listener:
    """One that cannot accept."""

    def __init__(self, number: int) -> None:
        self.errno = number

    def setblocking(self, _: bool) -> None:
        """Nothing to set."""

    def fileno(self) -> int:
        return 7

    def accept(self) -> Any:
        raise OSError(self.errno, "cannot accept")


def accepting(number: int) -> tuple[Loop, list[str], _Acceptor]:
    loop, said = Loop(), list[str]()
    log = SimpleNamespace(warning=lambda text, *_: said.append(text))
    worker: Any = SimpleNamespace(loop=loop, log=log, has_more_than_another=lambda: False)
    return loop, said, _Acceptor(worker, Listener(number))


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
def test_without_room_for_a_connection_the_listener_is_left_alone_for_a_while(number: int) -> None:
    loop, said, acceptor = accepting(number)
    acceptor._ready()
    assert loop.readers == [], "a reader would be called again at once, and the process would do nothing else"
    ((seconds, look_again),) = loop.later
    assert seconds >= 0.1 and said == ["no connection is taken: %s"]
    loop.later.clear()
    look_again()
    assert (loop.readers, len(loop.later)) == ([], 1), "and again, while there is still none"
    acceptor.close()
    assert loop.later == []


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ECONNABORTED])
def test_a_connection_that_another_process_took_or_that_is_gone_changes_nothing(number: int) -> None:
    loop, said, acceptor = accepting(number)
    acceptor._ready()
    assert (loop.readers, loop.later, said) == ([7], [], [])
