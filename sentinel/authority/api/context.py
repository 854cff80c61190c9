"""What the handlers are handed: the authority, who calls, the declared switches, the mapped tools, and threads to wait in."""

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
    """Handed to every route of the authority. `threads` are for what asks the database on behalf of the event loop."""

    authority: Authority
    identity: Identity
    switches: SwitchFile
    tools: ReloadedFile[ToolTable]
    threads: ThreadPoolExecutor

    async def in_thread(self, call: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """The result of a blocking call, waited for on the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self.threads, partial(call, *arguments, **named))
