"""Checks an agent's key: accepted by the authority, of this tenant and for this agent.

A key that is surely wrong stops a program from starting. One that cannot be checked now (no answer, refused for the moment,
something else listens at the address) does not: it may be under rotation, and nothing is lost meanwhile.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import psycopg

from sentinel.client import Client, KeyHolder, Rejected, Unreachable
from sentinel.client.calls import PREFIX
from sentinel.core.errors import EngineUnavailable
from sentinel.store.database import Pool

REMEMBERED_SECONDS = 2.0
_NO_SUCH_ROUTE = (404, 405)
"""Of an authority every route is there."""
_LABEL = "select refunds.tenant_label(%(tenant_id)s)"


class KeyFaultKind(StrEnum):
    """Why a key is not known to be ours."""

    SILENCE = "silence"
    """Nobody gives an answer: it passes by itself."""
    NO_AUTHORITY = "no_authority"
    """What answers at the address is no authority."""
    REFUSED = "refused"
    """The authority does not take the key, for the moment."""
    ANOTHERS = "anothers"
    """It is of another tenant or agent: another key is needed."""


@dataclass(frozen=True, slots=True)
class KeyFault:
    """What is wrong."""

    kind: KeyFaultKind
    text: str

    @property
    def is_from_authority(self) -> bool:
        """The authority is there and said so."""
        return self.kind in (KeyFaultKind.REFUSED, KeyFaultKind.ANOTHERS)


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
        self._bound_agent: str | None = None
        self._is_told = False

    def fault(self) -> KeyFault | None:
        """None for a key that is as it should be. Never raises."""
        with self._lock:
            if self._now() - self._asked_at >= REMEMBERED_SECONDS:
                self._fault, self._asked_at = self._look(), self._now()
            return self._fault

    def bound_agent(self) -> str | None:
        """The agent that the key is bound to; None where it is bound to none, or the authority has not said yet. Never raises."""
        if not self._is_told:
            self.fault()
        return self._bound_agent

    def _look(self) -> KeyFault | None:
        try:
            holder = self._client.key()
            self._bound_agent, self._is_told = holder.agent_id, True
            return self._wrong(holder)
        except Unreachable as error:
            return KeyFault(KeyFaultKind.SILENCE, f"the authority gives no answer: {error.detail}")
        except Rejected as error:
            if error.status in _NO_SUCH_ROUTE:
                text = f"SENTINEL_URL: what answers there ({error.status}) is no authority; it is the address before {PREFIX}"
                return KeyFault(KeyFaultKind.NO_AUTHORITY, text)
            return KeyFault(KeyFaultKind.REFUSED, f"{self._variable}: the authority refuses the key: {error.detail}")

    def _wrong(self, holder: KeyHolder) -> KeyFault | None:
        if holder.tenant_id != str(self._tenant_id):
            said = f'the key belongs to tenant "{holder.tenant}", this is tenant "{self._tenant()}"'
        elif holder.agent_id not in (None, self._agent_id):
            said = f'the key is bound to agent "{holder.agent_id}", this is agent "{self._agent_id}"'
        else:
            return None
        return KeyFault(KeyFaultKind.ANOTHERS, f"{self._variable}: {said}")


def tenant_label(pool: Pool, tenant_id: uuid.UUID) -> str:
    """The tenant's public name; its id where the database has none or does not answer."""
    try:
        with pool.connection() as connection:
            row = connection.execute(_LABEL, {"tenant_id": tenant_id}).fetchone()
    except (psycopg.Error, EngineUnavailable):
        return str(tenant_id)
    return str(row[0]) if row and row[0] else str(tenant_id)
