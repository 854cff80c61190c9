"""Run a block only under authority: guard → start → the block → report.

    with guarded(client, "email.send", params={"to_count": 3}, idempotency_key="mail:42"):
        send()

    async with guarded(async_client, "email.send", params={"to_count": 3}, idempotency_key="mail:42"):
        await send()

As a decorator the key and the params may be functions of the call's own arguments.
"""

from __future__ import annotations

import functools
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from sentinel.client.calls import GuardQuestion, Outcome
from sentinel.client.client import Client
from sentinel.client.errors import (
    ActionDenied,
    ActionExpired,
    AlreadyStarted,
    ApprovalPending,
    ClientError,
    Rejected,
    StartedTooLate,
)

if TYPE_CHECKING:
    from typing import ParamSpec

    from sentinel.client.answers import GuardAnswer
    from sentinel.client.async_client import AsyncClient

    P = ParamSpec("P")

R = TypeVar("R")
GoesOn = Callable[[Exception], bool]
_LEAST_LATE_SECONDS = 5.0


def never_goes_on(error: Exception) -> bool:
    """A block that raises is over."""
    return False


class _Run:
    """What a guarded run asks, as given; `answer` is set inside the block, `reported` after it.

    `failure` may be set inside the block, in a word: then an error is reported although nothing is raised. `goes_on` tells of an
    exception of the block that what it began may still act.
    """

    def __init__(self, client: Any, question: Mapping[str, Any], wait_seconds: float) -> None:
        self._client, self._given, self._wait_seconds = client, question, wait_seconds
        self.answer: GuardAnswer | None = None
        self.failure: str | None = None
        self.goes_on: GoesOn = never_goes_on
        self.reported = False

    def _question(self) -> GuardQuestion:
        if callable(self._given["idempotency_key"]) or callable(self._given["params"]):
            raise TypeError("a key or params made from arguments need the decorator form")
        question: dict[str, Any] = {**self._given, "params": self._given["params"] or {}}
        return question  # type: ignore[return-value]

    def _question_of_call(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        made = {
            name: value(*args, **kwargs) if callable(value) else value
            for name, value in self._given.items()
            if name in ("idempotency_key", "params")
        }
        return {**self._given, **made}

    def _outcome(self, kind: type[BaseException] | None) -> Outcome:
        assert self.answer is not None
        # The type's name only: an exception's text may carry what must not leave this process.
        return outcome_of(self.answer, self.failure if kind is None else kind.__name__)

    def _may_go_on(self, error: BaseException | None) -> bool:
        """Was the block cancelled, broken off by an exit, or left by who does not wait for its end (`goes_on`)? Then nothing is reported.

        What the block had begun may go on, in a thread for one, while a report of an error says that nobody acts any more.
        """
        if error is None or (isinstance(error, Exception) and not self.goes_on(error)):
            return False
        self._not_reported(error)
        return True

    def _not_reported(self, failure: BaseException) -> None:
        # The side effect may have happened, so do not raise, whatever it is: who is told of an error may try another way.
        # Unreported, the operation becomes in doubt at the authority.
        assert self.answer is not None
        import logging

        logging.getLogger(__name__).warning(
            "the outcome of %s was not reported: %s", self.answer.idempotency_key, why_not_reported(failure)
        )


class Guarded(_Run):
    """One guarded run; made by `guarded()`."""

    _client: Client

    def __enter__(self) -> GuardAnswer:
        """Ask and start. Raises `ActionDenied`, `ApprovalPending`, `ActionExpired`, `AlreadyStarted` and others."""
        question = self._question()
        answer = self._client.guard(**question)
        if answer.status == "pending" and self._wait_seconds > 0:
            self._client.wait_for_approval(answer.approval_id or "", timeout_seconds=self._wait_seconds)
            answer = self._client.guard(**question)
        raise_unless_permitted(answer)
        asked, act_within = Stopwatch(), question.get("act_within_seconds")
        try:
            self._client.start(answer, uuid.uuid4(), act_within_seconds=act_within)
        except Rejected as refused:
            raise refused_start(answer, refused) from refused
        self.answer = answer
        if is_started_too_late(asked, self._client, act_within):
            self.failure = StartedTooLate.__name__
            self.__exit__(None, None, None)
            raise StartedTooLate("the start was answered too late to act on it")
        return answer

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> Literal[False]:
        if self._may_go_on(error):
            return False
        try:
            self._client.report(**self._outcome(kind))
            self.reported = True
        except Exception as failure:
            self._not_reported(failure)
        return False

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """The decorator form: each call of `function` is one guarded run. Raises `TypeError` for one that is not over when it returns."""
        if runs_as(function) != "plain":
            raise TypeError(f"{function!r} is not over when it returns: guard a coroutine function by an AsyncClient")

        @functools.wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            with Guarded(self._client, self._question_of_call(*args, **kwargs), self._wait_seconds):
                return finished(function(*args, **kwargs))

        return run


class AsyncGuarded(_Run):
    """One guarded run on an event loop; made by `guarded()` of an `AsyncClient`."""

    _client: AsyncClient

    async def __aenter__(self) -> GuardAnswer:
        """As `Guarded`. Cancelled before the block, nothing was done: a start may be recorded, and becomes in doubt."""
        question = self._question()
        answer = await self._client.guard(**question)
        if answer.status == "pending" and self._wait_seconds > 0:
            await self._client.wait_for_approval(answer.approval_id or "", timeout_seconds=self._wait_seconds)
            answer = await self._client.guard(**question)
        raise_unless_permitted(answer)
        asked, act_within = Stopwatch(), question.get("act_within_seconds")
        try:
            await self._client.start(answer, uuid.uuid4(), act_within_seconds=act_within)
        except Rejected as refused:
            raise refused_start(answer, refused) from refused
        self.answer = answer
        if is_started_too_late(asked, self._client, act_within):
            self.failure = StartedTooLate.__name__
            await self.__aexit__(None, None, None)
            raise StartedTooLate("the start was answered too late to act on it")
        import asyncio

        await asyncio.sleep(0)  # a cancellation that came with the answer ends it here, before the block
        return answer

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> Literal[False]:
        if self._may_go_on(error):
            return False
        try:
            await self._client.report(**self._outcome(kind))
            self.reported = True
        except Exception as failure:
            self._not_reported(failure)
        return False

    def __call__(self, function: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
        """The decorator form for a coroutine function. Raises `TypeError` for another one: of a plain function the effect would be done, and
        then nothing be there to await.
        """
        runs = runs_as(function)
        if runs == "generator":
            raise TypeError(f"{function!r} is a generator function, which is not over when it returns")
        if runs == "plain":
            raise TypeError(
                f"{function!r} is no coroutine function: guard a plain function by a Client, or make it one"
            )

        @functools.wraps(function)
        async def run(*args: P.args, **kwargs: P.kwargs) -> R:
            async with AsyncGuarded(self._client, self._question_of_call(*args, **kwargs), self._wait_seconds):
                return finished(await function(*args, **kwargs))

        return run


@overload
def guarded(
    client: Client,
    action: str,
    *,
    idempotency_key: str | Callable[..., str],
    params: Mapping[str, Any] | Callable[..., Mapping[str, Any]] | None = ...,
    resource: str | None = ...,
    risk_class: str | None = ...,
    evidence_context: Mapping[str, Any] | None = ...,
    act_within_seconds: int | None = ...,
    wait_seconds: float = ...,
) -> Guarded: ...


@overload
def guarded(
    client: AsyncClient,
    action: str,
    *,
    idempotency_key: str | Callable[..., str],
    params: Mapping[str, Any] | Callable[..., Mapping[str, Any]] | None = ...,
    resource: str | None = ...,
    risk_class: str | None = ...,
    evidence_context: Mapping[str, Any] | None = ...,
    act_within_seconds: int | None = ...,
    wait_seconds: float = ...,
) -> AsyncGuarded: ...


def guarded(
    client: Client | AsyncClient,
    action: str,
    *,
    idempotency_key: str | Callable[..., str],
    params: Mapping[str, Any] | Callable[..., Mapping[str, Any]] | None = None,
    resource: str | None = None,
    risk_class: str | None = None,
    evidence_context: Mapping[str, Any] | None = None,
    act_within_seconds: int | None = None,
    wait_seconds: float = 0.0,
) -> Guarded | AsyncGuarded:
    """A context manager (and decorator) that enters its block only with a started permit; `async with` for an `AsyncClient`.

    `act_within_seconds` is how long the block may take (None: the authority's own time): before its end nobody can say that it
    was not executed, unless the block raises an `Exception`, which reports an error. A cancellation, like an exit, reports
    nothing: what the block had begun may go on. `wait_seconds` is how long to wait for a person, then ask again with the same
    key; 0 raises `ApprovalPending` at once.
    """
    question = {
        "action": action, "idempotency_key": idempotency_key, "params": params, "resource": resource, "risk_class": risk_class,
        "evidence_context": evidence_context, "act_within_seconds": act_within_seconds,
    }  # fmt: skip
    kind = Guarded if isinstance(client, Client) else AsyncGuarded
    return kind(client, question, wait_seconds)


def runs_as(function: Callable[..., Any]) -> Literal["plain", "coroutine", "generator"]:
    """What a call of the function (or of an object that is called like one) gives: its result, or something that runs only later."""
    import inspect  # for who decorates: it takes longer than the rest of the client

    while isinstance(function, functools.partial):
        function = function.func
    if inspect.iscoroutinefunction(function):  # also of an object that is marked as one
        return "coroutine"
    if not inspect.isroutine(function):
        function = type(function).__call__
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        return "generator"
    return "coroutine" if inspect.iscoroutinefunction(function) else "plain"


def finished(result: R) -> R:
    """The result of a call that is over. Raises `TypeError` for a coroutine, an awaitable or a generator: its effect is still to come."""
    import inspect

    if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
        if inspect.iscoroutine(result):
            result.close()
        raise TypeError(
            f"a guarded call returned a {type(result).__name__}, which would run after its outcome is reported"
        )
    return result


def outcome_of(answer: GuardAnswer, error: str | None) -> Outcome:
    """What is reported of a started action: a success, or the error in a word."""
    return {
        "idempotency_key": answer.idempotency_key,
        "action": answer.action,
        "agent_id": answer.agent_id,
        "outcome": "success" if error is None else "error",
        "error": error,
        "resource": answer.resource,
        "risk_class": answer.risk_class,
        "permit_token": answer.permit_token,
    }


def why_not_reported(failure: BaseException) -> str:
    """Why there is no report, in one line for a log: of an error that is not the client's own its type alone."""
    return failure.detail if isinstance(failure, ClientError) else type(failure).__name__


def raise_unless_permitted(answer: GuardAnswer) -> None:
    """Raise `ActionDenied`, `ApprovalPending`, `ActionExpired` or `AlreadyStarted` unless the answer is a permission."""
    if answer.may_start:
        return
    if answer.status == "pending":
        raise ApprovalPending(answer.approval_id or "", answer.reason)
    if answer.status == "expired":
        raise ActionExpired(answer.reason or "nobody decided in time")
    if answer.status in ("already_started", "completed"):
        raise AlreadyStarted(answer.idempotency_key, answer.outcome, answer.resolution)
    raise ActionDenied(answer.reason_code, answer.reason, is_final=not answer.is_halted_for_now)


class Stopwatch:
    """Time since it was made, the time in which the machine was suspended included."""

    __slots__ = ("_monotonic", "_wall")

    def __init__(self) -> None:
        self._monotonic, self._wall = time.monotonic(), time.time()

    @property
    def seconds(self) -> float:
        """By the monotonic clock, which nobody sets and which may stand still with the machine, or by the wall clock: whichever says more."""
        return max(time.monotonic() - self._monotonic, time.time() - self._wall)


def is_started_too_late(asked: Stopwatch, client: Client | AsyncClient, act_within_seconds: int | None) -> bool:
    """Was a start that was asked for when `asked` was made answered so late that somebody may say that it was not executed?

    No call outlasts its client's time by more than a busy machine adds; a process that was stopped may be any time behind.
    """
    most = max(2 * client.timeout_seconds, _LEAST_LATE_SECONDS)
    return asked.seconds > min(most, act_within_seconds or most)


def refused_start(answer: GuardAnswer, refused: Rejected) -> ClientError:
    """What a refused start means for the block."""
    if refused.code == "already-started":
        return AlreadyStarted(answer.idempotency_key)
    if refused.code == "permit-expired":
        return ActionExpired("the permit ran out before the start", is_final=False)
    if refused.status in (403, 409):
        # Of a permit that was just given the authority refuses the start alone, for a halt: the same question says how it stands now.
        return ActionDenied(refused.code, refused.detail, is_final=refused.code != "permit-refused")
    return refused
