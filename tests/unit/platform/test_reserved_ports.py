"""A port is kept from its choice until a server listens there."""

from __future__ import annotations

import socket
import sys

import pytest

from sentinel.demo.processes import HOST, reserve_port


@pytest.mark.skipif(sys.platform != "linux", reason="the port is only free now there")
def test_a_reserved_port_is_given_to_nobody_and_a_server_listens_there_all_the_same() -> None:
    port, holder = reserve_port()
    with holder, socket.socket() as other, socket.socket() as server:
        with pytest.raises(OSError, match="in use"):
            other.bind((HOST, port))
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((HOST, port))
        server.listen()
        with socket.create_connection((HOST, port), timeout=60) as caller:
            assert caller.getpeername()[1] == port


def test_where_somebody_listens_another_port_is_found() -> None:
    with socket.create_server((HOST, 0)) as server:
        taken = server.getsockname()[1]
        port, holder = reserve_port(taken)
        holder.close()
        assert port not in (0, taken)
