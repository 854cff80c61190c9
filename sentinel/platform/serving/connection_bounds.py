"""Connection limits of a process, in total and per address, and which idle connection is closed for a new one.

Idle connections cannot keep others out: when a bound is reached, the connection that has waited the longest (for its
first request, for its next one, for the rest of its body) is closed for the new one. A connection whose request is
being answered is never closed; when all are, the new one is.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from enum import IntEnum
from typing import Protocol


class Stage(IntEnum):
    """What a connection is doing; when room is needed, connections of the lowest stage are closed first, ANSWERED never."""

    NEW = 0
    IDLE = 1
    BODY = 2
    ANSWERED = 3


class CountedConnection(Protocol):
    """A connection as `Connections` sees it. `network` is the network that its address counts to (`network_of`)."""

    network: str
    stage: Stage

    def shed(self) -> None:
        """Close it now, even if its client has not read all answers yet."""

    def end(self) -> None:
        """Close it; between two requests, pending answers are still sent."""


_Waiting = tuple[
    dict[CountedConnection, None],
    dict[CountedConnection, None],
    dict[CountedConnection, None],
    dict[CountedConnection, None],
]


def _stages() -> _Waiting:
    return {}, {}, {}, {}


class Connections:
    """The connections of one process: at most `most`, and at most `most_of_address` from one address (its `network`).

    Not thread-safe: to be used on one event loop.
    """

    def __init__(self, most: int, most_of_address: int) -> None:
        self._most = most
        self._most_of_address = most_of_address
        # Dicts keep the order in which connections entered a stage: the first has waited the longest.
        self._all = _stages()
        self._by_network: defaultdict[str, _Waiting] = defaultdict(_stages)

    def __len__(self) -> int:
        return sum(map(len, self._all))

    def waiting(self) -> list[CountedConnection]:
        """The connections between two requests, or before their first."""
        return [*self._all[Stage.NEW], *self._all[Stage.IDLE]]

    def admit(self, connection: CountedConnection) -> bool:
        """Add a new connection, closing a waiting one if there is no room. False when all others are being answered."""
        near = self._by_network.get(connection.network)
        if near is not None and sum(map(len, near)) >= self._most_of_address and not self._shed(near):
            return False
        if len(self) >= self._most and not self._shed(self._all):
            return False
        connection.stage = Stage.NEW
        self._all[Stage.NEW][connection] = self._by_network[connection.network][Stage.NEW][connection] = None
        return True

    def moved(self, connection: CountedConnection, stage: Stage) -> None:
        """Move a connection to another stage, or behind the others of its own stage."""
        near = self._by_network.get(connection.network)
        if near is None or connection not in near[connection.stage]:
            return
        for stages in (self._all, near):
            del stages[connection.stage][connection]
            stages[stage][connection] = None
        connection.stage = stage

    def gone(self, connection: CountedConnection) -> None:
        """Remove a connection that is closed or about to be."""
        near = self._by_network.get(connection.network)
        if near is None:
            return
        for stages in (self._all, near):
            stages[connection.stage].pop(connection, None)
        if not any(near):
            del self._by_network[connection.network]

    def _shed(self, stages: _Waiting) -> bool:
        for stage in (Stage.NEW, Stage.IDLE, Stage.BODY):
            for connection in stages[stage]:
                self.gone(connection)
                connection.shed()
                return True
        return False


class BoundedConnection:
    """What `Connections` needs beyond uvicorn's protocols: a deadline for the client's next bytes, and ways to close a connection."""

    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    network = ""
    stage = Stage.NEW
    _deadline: asyncio.TimerHandle | None = None

    def shed(self) -> None:
        """Close it for another that needs the room. Unread answers are dropped then, because the connection is no longer counted."""
        self.end()
        # In the loop's next turn: answers written in this one are handed to the kernel first, which still sends them.
        self.loop.call_soon(self.transport.abort)

    def end(self) -> None:
        """Close it: between two requests after pending answers are sent, in the middle of a request at once."""
        self._due_in(None)
        if self.stage in (Stage.NEW, Stage.IDLE):
            self.transport.close()
        else:
            self.transport.abort()

    def _due_in(self, seconds: float | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self.loop.call_later(seconds, self.end)
