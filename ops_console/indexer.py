"""Keeps the public ids of what the board shows where operators look them up, for as long as the console runs.

A guard mints nothing; this follows the decisions a second behind. Whoever looks one up earlier fills the rest (`look_up_public_id`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import structlog

from ops_console.board.reader import NOBODY
from ops_console.context import Context
from sentinel.core.errors import SentinelError
from sentinel.services.look_up_public_id import index_public_ids

APART_SECONDS = 1.0

log = structlog.get_logger("console.indexer")


def start_indexer(context: Context, *, stopping: Callable[[], bool]) -> None:
    """Index in a thread of its own until `stopping` says so."""
    threading.Thread(target=_index_until, args=(context, stopping), name="indexer", daemon=True).start()


def _index_until(context: Context, stopping: Callable[[], bool]) -> None:
    is_away = False
    while not stopping():
        try:
            tenant_id = context.board.tenant()[0]
            if tenant_id != NOBODY:
                index_public_ids(context.pool, tenant_id, context.public_ids(), seconds=APART_SECONDS)
            is_away = False
        except SentinelError as error:
            if not is_away:
                log.warning("indexer_waits", cause=error.detail)
            is_away = True
        except Exception:
            # Nobody would notice that nothing is indexed any more: what one round breaks on, the next may not.
            log.exception("indexing_failed")
        time.sleep(APART_SECONDS)
