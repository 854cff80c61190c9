"""Checks an agent's key: accepted by the authority, of this tenant and for this agent.

A key that is surely wrong stops a program from starting. One that cannot be checked now (no answer, refused for the moment)
does not: it may be under rotation, and nothing is lost meanwhile.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

import psycopg

from sentinel.client import Client, KeyHolder, Rejected, Unreachable
from sentinel.core.errors import EngineUnavailable
from sentinel.store.database import Pool

REMEMBERED_SECONDS = 2.0
_UNKNOWN_ROUTE = (404, 405)
_LABEL = "select refunds.tenant_label(%(tenant_id)s)"


@dataclass(frozen=True, slots=True)
class KeyFault:
    """What is wrong; `surely` where another key is needed, False where it could not be tried.

    `answered`: the authority did say something.
    """

    text: str
    surely: bool
    answered: bool = True


class KeyCheck:
    """Tries one key against what it is meant for. Thread-safe; an answer is remembered for two seconds."""

    def __init__(
        self, client: Client, *, variable: str, tenant_id: uuid.UUID, tenant: Callable[[], str], agent_id: str,
        now: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._client, self._variable = client, variable
        self._tenant_id, self._tenant, self._agent_id = tenant_id, tenant, agent_id
        self._now, self._lock = now, threading.Lock()
        self._asked_at = float("-inf")
        self._fault: KeyFault | None = None

    def fault(self) -> KeyFault | None:
        """None for a key that is as it should be. Never raises."""
        with self._lock:
            if self._now() - self._asked_at >= REMEMBERED_SECONDS:
                self._fault, self._asked_at = self._look(), self._now()
            return self._fault

    def _look(self) -> KeyFault | None:
        try:
            return self._wrong(self._client.key())
        except Unreachable as error:
            return KeyFault(f"the authority gives no answer: {error.detail}", surely=False, answered=False)
        except Rejected as error:
            # An authority that has not the route refuses calls for another tenant by itself: they all name theirs.
            if error.status in _UNKNOWN_ROUTE:
                return None
            return KeyFault(f"{self._variable}: the authority refuses the key: {error.detail}", surely=False)

    def _wrong(self, holder: KeyHolder) -> KeyFault | None:
        if holder.tenant_id != str(self._tenant_id):
            return KeyFault(
                f'{self._variable}: the key belongs to tenant "{holder.tenant}", this is tenant "{self._tenant()}"', surely=True
            )  # fmt: skip
        if holder.agent_id not in (None, self._agent_id):
            return KeyFault(
                f'{self._variable}: the key is bound to agent "{holder.agent_id}", this is agent "{self._agent_id}"',
                surely=True,
            )
        return None


def tenant_label(pool: Pool, tenant_id: uuid.UUID) -> str:
    """The tenant's public name; its id where the database has none or does not answer."""
    try:
        with pool.connection() as connection:
            row = connection.execute(_LABEL, {"tenant_id": tenant_id}).fetchone()
    except (psycopg.Error, EngineUnavailable):
        return str(tenant_id)
    return str(row[0]) if row and row[0] else str(tenant_id)
