"""Checks that an agent's key is accepted by the authority and belongs to this tenant and agent.

A key of another tenant or agent stops a program from starting. One that cannot be checked now (no answer, refused for
the moment, another program at the address) does not: it may be in rotation, and work waits without loss meanwhile.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import psycopg

from sentinel.client import Client, KeyHolder, Rejected, Unreachable
from sentinel.client.calls import PREFIX
from sentinel.core.errors import EngineUnavailable
from sentinel.store.database import Pool

REMEMBERED_SECONDS = 2.0
_NO_SUCH_ROUTE = (404, 405)
"""Statuses that an authority never gives for this route."""
GUARD_SCOPE = "guard"
NO_TENANT = "no tenant yet: create one first, or set SENTINEL_TENANT_ID"
_LABEL = "select refunds.tenant_label(%(tenant_id)s)"


class KeyFaultKind(StrEnum):
    """Why a key is not known to be valid for this tenant and agent."""

    SILENCE = "silence"
    """No answer: a temporary fault."""
    NO_AUTHORITY = "no_authority"
    """The program at the address is not an authority."""
    REFUSED = "refused"
    """The authority refuses the key, perhaps only for now."""
    ANOTHERS = "anothers"
    """The key belongs to another tenant or agent: another key is needed."""
    MISSING_SCOPE = "missing_scope"
    """The key lacks a scope without which nothing is ever decided: another key is needed."""


@dataclass(frozen=True, slots=True)
class KeyFault:
    """One fault of a key, with a text for operators."""

    kind: KeyFaultKind
    text: str

    @property
    def is_from_authority(self) -> bool:
        """Whether an authority answered and reported the fault."""
        return self.kind not in (KeyFaultKind.SILENCE, KeyFaultKind.NO_AUTHORITY)


class KeyCheck:
    """Checks one key against the tenant, the agent and the scopes that it is meant for. Thread-safe; a result is cached for two seconds."""

    def __init__(
        self, client: Client, *, variable: str, tenant_id: uuid.UUID, tenant: Callable[[], str], agent_id: str,
        needs: Sequence[str] = (GUARD_SCOPE,), now: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._client, self._variable, self._needs = client, variable, needs
        self._tenant_id, self._tenant, self._agent_id = tenant_id, tenant, agent_id
        self._now, self._lock = now, threading.Lock()
        self._asked_at = float("-inf")
        self._fault: KeyFault | None = None
        self._bound_agent: str | None = None
        self._is_told = False

    def fault(self) -> KeyFault | None:
        """The key's present fault, None for a valid key. Never raises."""
        with self._lock:
            if self._now() - self._asked_at >= REMEMBERED_SECONDS:
                self._fault, self._asked_at = self._look(), self._now()
            return self._fault

    def bound_agent(self) -> str | None:
        """The agent that the key is bound to; None if it is bound to none, or the authority has not answered yet. Never raises."""
        if not self._is_told:
            self.fault()
        return self._bound_agent

    def _look(self) -> KeyFault | None:
        try:
            holder = self._client.key()
            self._bound_agent, self._is_told = holder.agent_id, True
            return self._wrong(holder)
        except Unreachable as error:
            return KeyFault(KeyFaultKind.SILENCE, f"the authority does not respond: {error.detail}")
        except Rejected as error:
            if error.status in _NO_SUCH_ROUTE:
                text = f"SENTINEL_URL: the server there is not an authority (it answered {error.status}); give the address before {PREFIX}"
                return KeyFault(KeyFaultKind.NO_AUTHORITY, text)
            return KeyFault(KeyFaultKind.REFUSED, f"{self._variable}: the authority refuses the key: {error.detail}")

    def _wrong(self, holder: KeyHolder) -> KeyFault | None:
        if holder.tenant_id != str(self._tenant_id):
            said = f'the key belongs to tenant "{holder.tenant}", this is tenant "{self._tenant()}"'
        elif holder.agent_id not in (None, self._agent_id):
            said = f'the key is bound to agent "{holder.agent_id}", this is agent "{self._agent_id}"'
        elif holder.scopes and (missing := [scope for scope in self._needs if scope not in holder.scopes]):
            said = f'the key lacks the scope "{missing[0]}", without which nothing is decided; create another key'
            return KeyFault(KeyFaultKind.MISSING_SCOPE, f"{self._variable}: {said}")
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
