"""What every handler is handed: the authority, identity, the declared switches, the tool table, and a thread pool."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from sentinel.authority.api.identity import Identity
from sentinel.authority.engine import Authority
from sentinel.policy.source import ReloadedFile
from sentinel.policy.switches import SwitchFile
from sentinel.tools.mapping import ToolTable

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Context:
    """The parts that every route of the authority uses. `threads` run database calls for handlers on the event loop."""

    authority: Authority
    identity: Identity
    switches: SwitchFile
    tools: ReloadedFile[ToolTable]
    threads: ThreadPoolExecutor

    async def in_thread(self, call: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Run a blocking call in a thread and return its result, without blocking the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self.threads, partial(call, *arguments, **named))
