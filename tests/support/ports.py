"""Loopback ports for the servers that tests start."""

from __future__ import annotations

import atexit
import socket
import sys

_held: list[socket.socket] = []


def free_port() -> int:
    """A loopback port that nothing listens on, and that nobody else is given as long as this process lives.

    It stays bound without listening: a server that may take over an address (`SO_REUSEADDR`) listens there all the same,
    and no test beside this one meets it. Where the system does not allow that, outside Linux, the port is only free now.
    """
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    port = int(holder.getsockname()[1])
    if sys.platform == "linux":
        _held.append(holder)
    else:
        holder.close()
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
