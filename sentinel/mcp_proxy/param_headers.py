"""The arguments that a server of 2026-07-28 wants in headers too (`x-mcp-header` in a tool's schema), over HTTP only.

Such a server refuses a call whose headers do not repeat them, and after the start that would leave the operation in
doubt. So they are read from the server's list of tools before the start, and kept for a minute.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import mcp_types as types
from mcp.shared.inbound import mcp_param_headers, x_mcp_header_map

KEPT_SECONDS = 60.0
_MOST_PAGES = 100

_Names = Mapping[tuple[str, ...], str]
"""The path of an argument → the header's name, after its prefix."""


class ParamHeaders:
    """What one server wants repeated of each tool's arguments, and until when that is kept (monotonic seconds)."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[float, _Names]] = {}

    async def learn(self, tool: str, session: Any) -> None:
        """List the server's tools up to this one, unless it is known. Of a tool that is not listed nothing is repeated."""
        now = time.monotonic()
        if tool in self._kept and self._kept[tool][0] > now:
            return
        found: dict[str, _Names] = {}
        cursor: str | None = None
        for _ in range(_MOST_PAGES):
            page = await session.list_tools(params=types.PaginatedRequestParams(cursor=cursor))
            found |= {one.name: x_mcp_header_map(one.input_schema) for one in page.tools}
            cursor = page.next_cursor
            if cursor is None or tool in found:
                break
        found.setdefault(tool, {})
        self._kept |= {name: (now + KEPT_SECONDS, names) for name, names in found.items()}

    def forget(self, tool: str) -> None:
        """Have the tool looked up again for the next call: the server has changed what it wants."""
        self._kept.pop(tool, None)

    def of(self, call: types.CallToolRequestParams) -> dict[str, str]:
        """Return the headers of a call whose tool is known."""
        _, names = self._kept.get(call.name, (0.0, {}))
        return mcp_param_headers(names, call.arguments or {})
