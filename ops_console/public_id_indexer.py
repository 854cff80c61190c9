"""Keeps the public ids of what the board shows where operators look them up, for as long as the console runs.

A guard mints nothing; this follows the decisions a second behind. Whoever looks one up earlier fills the rest (`look_up_public_id`).
"""

from __future__ import annotations

from collections.abc import Callable

from ops_console.board.reader import NOBODY
from ops_console.context import Context
from ops_console.periodic import start_rounds
from sentinel.authority.public_ids import index_public_ids

APART_SECONDS = 1.0


def start_indexer(context: Context, *, stopping: Callable[[], bool]) -> None:
    """Index in a thread of its own until `stopping` says so."""

    def index() -> None:
        tenant_id = context.board.tenant()[0]
        if tenant_id != NOBODY:
            index_public_ids(context.pool, tenant_id, context.public_ids(), seconds=APART_SECONDS)

    start_rounds("indexer", index, seconds=APART_SECONDS, stopping=stopping)
