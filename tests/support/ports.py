"""Loopback ports for the servers that tests start."""

from __future__ import annotations

import atexit
import socket

from sentinel.demo.processes import reserve_port

_held: list[socket.socket] = []


def free_port() -> int:
    """A loopback port that nothing listens on, and that nobody else is given as long as this process lives."""
    port, holder = reserve_port()
    _held.append(holder)
    return port


@atexit.register
def _let_ports_go() -> None:
    for holder in _held:
        holder.close()


def listens(port: int) -> bool:
    """Whether something accepts connections there."""
    with socket.socket() as probe:
        probe.settimeout(0.3)
        return probe.connect_ex(("127.0.0.1", port)) == 0
