"""Run a block only under authority: guard → start → the block → report.

    with guarded(client, "email.send", params={"to_count": 3}, idempotency_key="mail:42"):
        send()

As a decorator the key and the params may be functions of the call's own arguments.
"""

from __future__ import annotations

import functools
import logging
import uuid
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

from sentinel.client.answers import GuardAnswer
from sentinel.client.client import Client
from sentinel.client.errors import (
    ActionDenied,
    ActionExpired,
    AlreadyStarted,
    ApprovalPending,
    Rejected,
    Unreachable,
)

_log = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")
FromCall = Callable[..., Any]


class Guarded:
    """One guarded run; made by `guarded()`. `answer` is set inside the block, `reported` after it."""

    def __init__(
        self,
        client: Client,
        action: str,
        *,
        idempotency_key: str | Callable[..., str],
        params: Mapping[str, Any] | Callable[..., Mapping[str, Any]] | None = None,
        resource: str | None = None,
        risk_class: str | None = None,
        evidence_context: Mapping[str, Any] | None = None,
        act_within_seconds: int | None = None,
    ) -> None:
        self._client, self._action = client, action
        self._key, self._params = idempotency_key, params
        self._act_within_seconds = act_within_seconds
        self._bound = {"resource": resource, "risk_class": risk_class, "evidence_context": evidence_context}
        self.answer: GuardAnswer | None = None
        self.reported = False

    def __enter__(self) -> GuardAnswer:
        """Ask and start. Raises `ActionDenied`, `ApprovalPending`, `ActionExpired`, `AlreadyStarted` and others."""
        if callable(self._key) or callable(self._params):
            raise TypeError("a key or params made from arguments need the decorator form")
        answer = self._client.guard(
            action=self._action,
            params=self._params or {},
            idempotency_key=self._key,
            **self._bound,  # type: ignore[arg-type]
        )
        _require_permission(answer)
        _start(self._client, answer, self._act_within_seconds)
        self.answer = answer
        return answer

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        assert self.answer is not None
        try:
            self._client.report(
                idempotency_key=self.answer.idempotency_key,
                action=self.answer.action,
                agent_id=self.answer.agent_id,
                outcome="success" if kind is None else "error",
                # The type's name only: an exception's text may carry what must not leave this process.
                error=None if kind is None else kind.__name__,
                resource=self.answer.resource,
                risk_class=self.answer.risk_class,
                permit_token=self.answer.permit_token,
            )
            self.reported = True
        except (Unreachable, Rejected) as failure:
            # The side effect has happened, so do not raise. Unreported, the operation becomes in doubt at the authority.
            _log.warning("the outcome of %s was not reported: %s", self.answer.idempotency_key, failure.detail)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """The decorator form: each call of `function` is one guarded run."""

        @functools.wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            with self._for_call(*args, **kwargs):
                return function(*args, **kwargs)

        return run

    def _for_call(self, *args: Any, **kwargs: Any) -> Guarded:
        key = self._key(*args, **kwargs) if callable(self._key) else self._key
        params = self._params(*args, **kwargs) if callable(self._params) else self._params
        return Guarded(
            self._client, self._action, idempotency_key=key, params=params,
            act_within_seconds=self._act_within_seconds, **self._bound,  # type: ignore[arg-type]
        )  # fmt: skip


def guarded(
    client: Client,
    action: str,
    *,
    idempotency_key: str | Callable[..., str],
    params: Mapping[str, Any] | Callable[..., Mapping[str, Any]] | None = None,
    resource: str | None = None,
    risk_class: str | None = None,
    evidence_context: Mapping[str, Any] | None = None,
    act_within_seconds: int | None = None,
) -> Guarded:
    """A context manager (and decorator) that enters its block only with a started permit.

    `act_within_seconds` is how long the block may take (None: the authority's own time): before its end nobody can say that it
    was not executed, unless the block fails, which reports an error.
    """
    return Guarded(
        client,
        action,
        idempotency_key=idempotency_key,
        params=params,
        resource=resource,
        risk_class=risk_class,
        evidence_context=evidence_context,
        act_within_seconds=act_within_seconds,
    )


def _require_permission(answer: GuardAnswer) -> None:
    if answer.may_start:
        return
    if answer.status == "pending":
        raise ApprovalPending(answer.approval_id or "", answer.reason)
    if answer.status == "expired":
        raise ActionExpired(answer.reason or "nobody decided in time")
    if answer.status in ("already_started", "completed"):
        raise AlreadyStarted(f"{answer.idempotency_key} was started before")
    raise ActionDenied(answer.reason_code, answer.reason)


def _start(client: Client, answer: GuardAnswer, act_within_seconds: int | None) -> None:
    try:
        client.start(answer, uuid.uuid4(), act_within_seconds=act_within_seconds)
    except Rejected as refused:
        if refused.code == "already-started":
            raise AlreadyStarted(f"{answer.idempotency_key} was started before") from refused
        if refused.code == "permit-expired":
            raise ActionExpired("the permit ran out before the start") from refused
        if refused.status in (403, 409):
            raise ActionDenied(refused.code, refused.detail) from refused
        raise
