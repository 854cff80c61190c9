"""Calls that wait for a person, as tasks of the extension `io.modelcontextprotocol/tasks` (SEP-2663).

A task id is the encrypted call itself, so nothing is stored for a waiting task, and its agent can continue it after a
restart and at any proxy with the same key. `tasks/get` asks the authority again and sends the call once it is
permitted; nothing is sent for a client that does not poll again. Results are kept in memory for ten minutes.
Cancellations are kept for as long as the proxy runs, because a task id cannot record one.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import time
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any

import mcp_types as types
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from mcp import MCPError
from pydantic import ConfigDict, Field

from sentinel.mcp_proxy.answers import CallRefused, refused_result
from sentinel.mcp_proxy.calls import GuardedCalls, PermittedCall, Result

EXTENSION = "io.modelcontextprotocol/tasks"
POLL_MILLISECONDS = 2_000
_UTC = timezone.utc  # noqa: UP017 - Python 3.10 has no UTC
_KEPT_SECONDS = 600.0
_LONGEST_ID = 6_000
"""In characters: a client may send the id in a header."""
_QUICK_SECONDS = 1.0
_MOST_CANCELLED = 100_000
"""Of all agents together; about ten megabytes of memory."""


class TaskParams(types.RequestParams):
    """The params of `tasks/get` and `tasks/cancel`."""

    model_config = ConfigDict(populate_by_name=True)
    task_id: str = Field(alias="taskId")


@dataclass(frozen=True, slots=True)
class WaitingCall:
    """The content of a task id: the call, the agent that made it, and since when it waits (ISO 8601, UTC)."""

    agent: str
    tool: str
    arguments: dict[str, Any]
    since: str


class TaskIds:
    """Encrypts calls into task ids, under a key derived from `secret`, the proxy's key; with another secret the ids are unknown."""

    def __init__(self, secret: str, *, server: str) -> None:
        key = HKDF(SHA256(), 32, salt=None, info=b"sentinel mcp-proxy task ids").derive(secret.encode())
        self._sealing, self._server = AESGCM(key), server.encode()

    def seal(self, call: WaitingCall) -> str | None:
        """Return the task id of a call; None where its arguments are too large for one."""
        text = json.dumps([call.agent, call.tool, call.arguments, call.since], separators=(",", ":"))
        nonce = os.urandom(12)
        sealed = base64.urlsafe_b64encode(nonce + self._sealing.encrypt(nonce, text.encode(), self._server)).decode()
        return sealed if len(sealed) <= _LONGEST_ID else None

    def open(self, task_id: str) -> WaitingCall | None:
        """Return the call of a task id; None unless it is spelled exactly as `seal` made it, since tasks are remembered by their id."""
        try:
            raw = base64.urlsafe_b64decode(task_id.encode())
            if base64.urlsafe_b64encode(raw).decode() != task_id:
                return None
            return WaitingCall(*json.loads(self._sealing.decrypt(raw[:12], raw[12:], self._server)))
        except (InvalidTag, ValueError, TypeError):
            return None


@dataclass(slots=True)
class _Run:
    """A task's call that was begun at `noted` (monotonic seconds). `is_given_up`: its client has cancelled the task since."""

    run: asyncio.Task[Result] = field(init=False)
    noted: float = field(default_factory=time.monotonic)
    is_given_up: bool = False


class Tasks:
    """The tasks of one proxy."""

    def __init__(self, calls: GuardedCalls, ids: TaskIds) -> None:
        self._calls, self._ids = calls, ids
        self._runs: dict[str, _Run] = {}
        self._cancelled: dict[str, set[bytes]] = {}

    def create(self, agent: str, params: types.CallToolRequestParams, refused: CallRefused) -> dict[str, Any] | None:
        """Return the task that answers a call waiting for a person; None where its arguments do not fit into a task id."""
        call = WaitingCall(agent, params.name, params.arguments or {}, _now())
        task_id = self._ids.seal(call)
        if task_id is None:
            return None
        return {"resultType": "task", **_task(task_id, call.since, "working", refused)}

    async def get(self, agent: str, task_id: str) -> dict[str, Any]:
        """Return the task's state, and make its call where that is permitted now. Raises `MCPError` where the agent has no such task."""
        call = self._own(agent, task_id)
        kept = self._runs.get(task_id)
        if kept is None and not self._is_cancelled(agent, task_id):
            params = types.CallToolRequestParams(name=call.tool, arguments=call.arguments)
            try:
                permitted = await self._calls.ask(agent, params)
            except CallRefused as refused:
                if self._is_cancelled(agent, task_id):
                    return _task(task_id, call.since, "cancelled")
                return _refused(task_id, call.since, refused)
            # Meanwhile another poll of this task may have begun the call, or the client may have cancelled the task.
            kept = self._runs.get(task_id)
            if kept is None and not self._is_cancelled(agent, task_id):
                kept = self._begin(agent, task_id, permitted)
        if kept is None:
            return _task(task_id, call.since, "cancelled")
        await asyncio.wait((kept.run,), timeout=_QUICK_SECONDS)
        return _stands(task_id, call.since, kept)

    def cancel(self, agent: str, task_id: str) -> None:
        """Cancel a task: its call is not made, unless it was started already.

        Raises `MCPError` for an unknown task, and where no more cancellations of this agent can be remembered: it may
        have as many as are left, so that no agent takes the room of all others. The approval stays until it is decided
        or expires, because an agent may not withdraw it.
        """
        self._own(agent, task_id)
        kept = self._runs.get(task_id)
        if kept is not None:
            kept.is_given_up = True
            return
        if self._is_cancelled(agent, task_id):
            return
        left = _MOST_CANCELLED - sum(map(len, self._cancelled.values()))
        if len(self._cancelled.get(agent, ())) >= left:
            raise MCPError(code=types.INTERNAL_ERROR, message="Too many cancelled tasks; this task is not cancelled")
        self._remember_cancelled(agent, task_id)

    def _is_cancelled(self, agent: str, task_id: str) -> bool:
        return _mark(task_id) in self._cancelled.get(agent, ())

    def _remember_cancelled(self, agent: str, task_id: str) -> None:
        self._cancelled.setdefault(agent, set()).add(_mark(task_id))

    def _own(self, agent: str, task_id: str) -> WaitingCall:
        call = self._ids.open(task_id)
        if call is None or call.agent != agent:
            raise MCPError(code=types.INVALID_PARAMS, message="Task not found")
        return call

    def _begin(self, agent: str, task_id: str, permitted: PermittedCall) -> _Run:
        now = time.monotonic()
        for old in [one for one, kept in self._runs.items() if kept.noted + _KEPT_SECONDS < now and kept.run.done()]:
            del self._runs[old]
        kept = self._runs[task_id] = _Run()
        kept.run = self._calls.begin(permitted, lambda: not kept.is_given_up)
        # Added before anything awaits the run: callbacks run in order, so a waiter finds a refused run forgotten.
        kept.run.add_done_callback(partial(self._ended, agent, task_id, kept))
        return kept

    def _ended(self, agent: str, task_id: str, kept: _Run, run: asyncio.Task[Result]) -> None:
        """Forget a run that was refused before anything was sent, so that the next poll asks again unless the task was cancelled."""
        if run.cancelled() or not isinstance(run.exception(), CallRefused):
            return
        if self._runs.get(task_id) is kept:
            del self._runs[task_id]
        if kept.is_given_up:
            self._remember_cancelled(agent, task_id)


def _mark(task_id: str) -> bytes:
    return hashlib.sha256(task_id.encode()).digest()


def _stands(task_id: str, since: str, kept: _Run) -> dict[str, Any]:
    if not kept.run.done():
        return _task(task_id, since, "working")
    try:
        result = kept.run.result()
    except CallRefused as refused:
        if kept.is_given_up:
            return _task(task_id, since, "cancelled")
        return _refused(task_id, since, refused)
    except MCPError as error:
        return {**_task(task_id, since, "failed"), "error": {"code": error.code, "message": error.message}}
    return _completed(task_id, since, result)


def _refused(task_id: str, since: str, refused: CallRefused) -> dict[str, Any]:
    """Return the state of a task whose call was refused: `completed` only where the refusal is final.

    A client stops polling a completed task, and nothing else would make the call later.
    """
    result = refused_result(refused)
    details = result.structured_content or {}
    if details["retry"] == "never":
        return _completed(task_id, since, result)
    said = {} if refused.waits_for_person else {"statusMessage": f"{details['reason']} [{details['reason_code']}]"}
    return {**_task(task_id, since, "working", refused), **said}


def _completed(task_id: str, since: str, result: Result) -> dict[str, Any]:
    dumped = result.model_dump(by_alias=True, mode="json", exclude_none=True)
    return {**_task(task_id, since, "completed"), "result": dumped}


def _task(task_id: str, since: str, status: str, refused: CallRefused | None = None) -> dict[str, Any]:
    answer = refused.answer if refused is not None else None
    waits = refused is not None and refused.waits_for_person
    waited = datetime.now(_UTC) - datetime.fromisoformat(since.replace("Z", "+00:00"))
    lives = waited + timedelta(seconds=_KEPT_SECONDS)
    if answer and answer.expires_at and answer.decided_at:
        # How long people may decide, by the authority's clock alone: this machine's clock may differ. Too long does no
        # harm, because a poll after the end is told that nobody decided in time.
        lives = max(answer.expires_at - answer.decided_at, waited)
    return {
        "taskId": task_id, "status": status, "createdAt": since, "lastUpdatedAt": _now(),
        "ttlMs": int(lives.total_seconds() * 1000),  # from its creation, as the protocol counts it
        "pollIntervalMs": POLL_MILLISECONDS,
        **({"statusMessage": f"waiting for approval {answer.approval_id}"} if waits and answer else {}),
    }  # fmt: skip


def _now() -> str:
    return datetime.now(_UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
