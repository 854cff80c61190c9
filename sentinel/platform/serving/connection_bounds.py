"""Connection limits of a process, in total and per address, and which idle connection is closed for a new one.

A connection that asks for nothing costs nobody else theirs: where a bound is reached, the one that has been waiting the
longest (for its first request, for its next one, for the rest of its body) is closed for the newcomer. A request that
is being answered is never closed; where all are, the newcomer is.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from enum import IntEnum
from typing import Protocol


class Stage(IntEnum):
    """What a connection is doing; where room is needed, one of the first stage is closed first."""

    NEW = 0
    IDLE = 1
    BODY = 2
    ANSWERED = 3


class CountedConnection(Protocol):
    """A connection, as its bounds see it. `network` is where it comes from (`network_of` its address)."""

    network: str
    stage: Stage

    def shed(self) -> None:
        """Close it now, whatever its client has not taken yet."""

    def end(self) -> None:
        """Close it, where it is between two requests with what was answered still going out."""


_Waiting = tuple[
    dict[CountedConnection, None],
    dict[CountedConnection, None],
    dict[CountedConnection, None],
    dict[CountedConnection, None],
]


def _stages() -> _Waiting:
    return {}, {}, {}, {}


class Connections:
    """The connections of one process: at most `most`, and at most `most_of_address` from one address.

    Not thread-safe: of one event loop.
    """

    def __init__(self, most: int, most_of_address: int) -> None:
        self._most = most
        self._most_of_address = most_of_address
        # Dicts keep the order in which connections came to a stage: the first has waited the longest.
        self._all = _stages()
        self._by_network: defaultdict[str, _Waiting] = defaultdict(_stages)

    def __len__(self) -> int:
        return sum(map(len, self._all))

    def waiting(self) -> list[CountedConnection]:
        """Those between two requests, or before their first."""
        return [*self._all[Stage.NEW], *self._all[Stage.IDLE]]

    def admit(self, connection: CountedConnection) -> bool:
        """Take a new connection in, closing one that waits where there is no room. False where all are being answered."""
        near = self._by_network.get(connection.network)
        if near is not None and sum(map(len, near)) >= self._most_of_address and not self._shed(near):
            return False
        if len(self) >= self._most and not self._shed(self._all):
            return False
        connection.stage = Stage.NEW
        self._all[Stage.NEW][connection] = self._by_network[connection.network][Stage.NEW][connection] = None
        return True

    def moved(self, connection: CountedConnection, stage: Stage) -> None:
        """Put a connection into another stage, or behind the others of its own."""
        near = self._by_network.get(connection.network)
        if near is None or connection not in near[connection.stage]:
            return
        for stages in (self._all, near):
            del stages[connection.stage][connection]
            stages[stage][connection] = None
        connection.stage = stage

    def gone(self, connection: CountedConnection) -> None:
        """Forget a connection that is closed or about to be."""
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
    """What uvicorn's protocols lack for `Connections`: a deadline for what the client owes, and how a connection is closed."""

    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    network = ""
    stage = Stage.NEW
    _deadline: asyncio.TimerHandle | None = None

    def shed(self) -> None:
        """Close it for another that needs the room. What the client has not taken then is dropped: nobody counts it any more."""
        self.end()
        # In the loop's next turn: what was answered in this one is handed to the kernel first, and that sends it.
        self.loop.call_soon(self.transport.abort)

    def end(self) -> None:
        """Close it: between two requests with what was answered still going out, in the middle of one at once."""
        self._due_in(None)
        if self.stage in (Stage.NEW, Stage.IDLE):
            self.transport.close()
        else:
            self.transport.abort()

    def _due_in(self, seconds: float | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self.loop.call_later(seconds, self.end)
