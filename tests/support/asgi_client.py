"""The app that a process serves, asked in this process: clients as Flask's, and the very edge of production behind them."""

from __future__ import annotations

from typing import Any

from flask import Flask
from werkzeug.test import Client, TestResponse

from sentinel.platform.http.asgi import Edge
from sentinel.platform.http.in_process import InProcess


class InProcessApp(InProcess):
    """An app and the loop that serves all its clients; close it with the fixtures it belongs to."""

    def __init__(self, edge: Edge) -> None:
        super().__init__(edge)
        self.edge = edge

    @property
    def flask(self) -> Flask:
        """The Flask app behind the edge, for what tests look up in it."""
        return self.edge.flask

    def test_client(self) -> AsgiClient:
        """Somebody new, with cookies of their own."""
        return AsgiClient(self)


class AsgiClient(Client):
    """A client on this machine."""

    def open(self, *arguments: Any, **named: Any) -> TestResponse:
        """Ask. See `werkzeug.test.EnvironBuilder` for what is taken."""
        if not arguments or isinstance(arguments[0], str):
            named["environ_base"] = {"REMOTE_ADDR": "127.0.0.1", **named.get("environ_base", {})}
        # Read whole, so that nothing is under way any more when the app is closed.
        return super().open(*arguments, **{"buffered": True, **named})
