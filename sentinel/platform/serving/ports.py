"""Loopback ports that nobody else is given before a server listens there."""

from __future__ import annotations

import contextlib
import socket
import sys

HOST = "127.0.0.1"


def reserve_port(wanted: int = 0) -> tuple[int, socket.socket]:
    """The wanted port if nothing listens there, else any free one; and the socket that keeps it, to be closed.

    It stays bound without listening: a server that may take over an address (`SO_REUSEADDR`) listens there all the same, and
    no outgoing connection is given it. Outside Linux, where that is not so, the socket is closed and the port is only free
    now. Raises `OSError` where no port is left.
    """
    for port in (wanted, 0):
        holder = socket.socket()
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):
            holder.bind((HOST, port))
            found = int(holder.getsockname()[1])
            if sys.platform != "linux":
                holder.close()
            return found, holder
        holder.close()
    raise OSError("no loopback port is free")
