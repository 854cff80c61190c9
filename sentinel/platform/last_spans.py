"""Sends a process's last spans as it ends, without waiting long for a collector that does not answer."""

from __future__ import annotations

import atexit
import threading
from typing import Any

END_SECONDS = 3.0
"""How long the end of a process waits for its last spans to be taken."""


def end_at_exit(provider: Any) -> None:
    """Have the process shut a tracer provider down as it ends, for at most END_SECONDS: the SDK waits half a minute for a
    collector that hangs. Make the provider with `shutdown_on_exit=False`."""
    is_ending = threading.Event()

    def shut_down() -> None:
        is_ending.wait()
        provider.shutdown()

    # Started now: while the interpreter ends no thread can be.
    sender = threading.Thread(target=shut_down, daemon=True, name="last-spans")
    sender.start()

    def end() -> None:
        is_ending.set()
        sender.join(END_SECONDS)

    atexit.register(end)
