"""Run a block only under authority: guard → start → the block → report.

    with guarded(client, "email.send", params={"to_count": 3}, idempotency_key="mail:42"):
        send()

    async with guarded(async_client, "email.send", params={"to_count": 3}, idempotency_key="mail:42"):
        await send()

In the decorator form the key and the params may be functions of the call's own arguments.
"""

from __future__ import annotations

import functools
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from sentinel.client.calls import FirstAsked, GuardQuestion, Outcome
from sentinel.client.client import Client
from sentinel.client.errors import (
    ActionDenied,
    ActionExpired,
    AlreadyStarted,
    ApprovalPending,
    ClientError,
    KeyConflict,
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
    """Return False: by default nothing that a block began still acts after it has raised."""
    return False


def stays_a_conflict(conflict: KeyConflict) -> FirstAsked:
    """Raise the conflict: by default a question is not asked with other params than those given."""
    raise conflict


OnConflict = Callable[[KeyConflict], FirstAsked]


async def first_answer(
    client: AsyncClient, question: GuardQuestion, on_conflict: OnConflict
) -> tuple[GuardQuestion, GuardAnswer]:
    """Return (the question that was answered, its answer): where the key was first used with other params, the question
    that `on_conflict` returns. Raises as the client's `guard`, and what `on_conflict` raises."""
    try:
        return question, await client.guard(**question)
    except KeyConflict as conflict:
        first = on_conflict(conflict)
        asked: GuardQuestion = {**question, **first.question}
        return asked, first.checked(await client.guard(**asked))


class _Run:
    """One guarded run with its question as given; `answer` is set inside the block, `reported` after it.

    `failure` may be set to one word inside the block: then an error is reported although nothing is raised. `goes_on`
    says of an exception of the block whether what the block began may still act; then nothing is reported. `on_conflict`
    returns the question to ask where the key was first used with other params, or raises the conflict.
    """

    def __init__(self, client: Any, question: Mapping[str, Any], wait_seconds: float) -> None:
        self._client, self._given, self._wait_seconds = client, question, wait_seconds
        self.answer: GuardAnswer | None = None
        self.failure: str | None = None
        self.goes_on: GoesOn = never_goes_on
        self.on_conflict: OnConflict = stays_a_conflict
        self.reported = False

    def _question(self) -> GuardQuestion:
        if callable(self._given["idempotency_key"]) or callable(self._given["params"]):
            raise TypeError("idempotency_key or params that are made from arguments can only be used in a decorator")
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
        """Return whether what the block began may still act: it was cancelled, ended by an exit, or given up
        (`goes_on`).

        Then nothing is reported, only logged: the work may go on, e.g. in a thread, while reporting an error would tell
        the authority that nobody acts any more.
        """
        if error is None or (isinstance(error, Exception) and not self.goes_on(error)):
            return False
        self._not_reported(error)
        return True

    def _not_reported(self, failure: BaseException) -> None:
        # Never raise here: the side effect may have happened, and a caller that gets an error may try it another way.
        # Without a report the authority puts the operation in doubt.
        assert self.answer is not None
        import logging

        logging.getLogger(__name__).warning(
            "the outcome of %s was not reported: %s", self.answer.idempotency_key, why_not_reported(failure)
        )


class Guarded(_Run):
    """One guarded run; made by `guarded()`."""

    _client: Client

    def __enter__(self) -> GuardAnswer:
        """Guard and start. Raises `ActionDenied`, `ApprovalPending`, `ActionExpired`, `AlreadyStarted`,
        `StartedTooLate`, `Rejected` or `Unreachable`."""
        question = self._question()
        try:
            answer = self._client.guard(**question)
        except KeyConflict as conflict:
            first = self.on_conflict(conflict)
            question = {**question, **first.question}
            answer = first.checked(self._client.guard(**question))
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
        """Wrap `function` so that each call is one guarded run. Raises `TypeError` for a coroutine or generator
        function, whose work is not over when it returns."""
        if runs_as(function) != "plain":
            raise TypeError(
                f"{function!r} has not done its work when it returns: guard a coroutine function with an AsyncClient"
            )

        @functools.wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            with Guarded(self._client, self._question_of_call(*args, **kwargs), self._wait_seconds):
                return finished(function(*args, **kwargs))

        return run


class AsyncGuarded(_Run):
    """One guarded run on an event loop; made by `guarded()` of an `AsyncClient`."""

    _client: AsyncClient

    async def __aenter__(self) -> GuardAnswer:
        """Guard and start, as `Guarded`. If cancelled before the block nothing was done, but a recorded start becomes in doubt."""
        question, answer = await first_answer(self._client, self._question(), self.on_conflict)
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

        await asyncio.sleep(0)  # a cancellation that arrived with the answer is raised here, before the block
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
        """Wrap a coroutine function so that each call is one guarded run. Raises `TypeError` for any other function: a
        plain one would do its side effect and then return nothing to await.
        """
        runs = runs_as(function)
        if runs == "generator":
            raise TypeError(f"{function!r} is a generator function, which has not done its work when it returns")
        if runs == "plain":
            raise TypeError(
                f"{function!r} is not a coroutine function: guard it with a Client, or make it a coroutine function"
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
    """Return a context manager (and decorator) that enters its block only with a started permit; `async with` for an
    `AsyncClient`.

    `act_within_seconds` is how long the block may take (None: the authority's default): until then nobody can record
    that it was not executed, unless the block raises an `Exception`, which reports an error. A cancellation, like an
    exit, reports nothing: what the block began may go on. `wait_seconds` is how long to wait for a person's decision
    before guarding again with the same key; 0 raises `ApprovalPending` at once.
    """
    question = {
        "action": action, "idempotency_key": idempotency_key, "params": params, "resource": resource, "risk_class": risk_class,
        "evidence_context": evidence_context, "act_within_seconds": act_within_seconds,
    }  # fmt: skip
    kind = Guarded if isinstance(client, Client) else AsyncGuarded
    return kind(client, question, wait_seconds)


def runs_as(function: Callable[..., Any]) -> Literal["plain", "coroutine", "generator"]:
    """Return whether a call of the function (or callable object) runs to its end ("plain"), or gives a coroutine or a
    generator that runs only later."""
    import inspect  # imported here because it takes longer to import than the rest of the client

    while isinstance(function, functools.partial):
        function = function.func
    if inspect.iscoroutinefunction(function):  # also true of an object that is marked as a coroutine function
        return "coroutine"
    if not inspect.isroutine(function):
        function = type(function).__call__
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        return "generator"
    return "coroutine" if inspect.iscoroutinefunction(function) else "plain"


def finished(result: R) -> R:
    """Return the result of a call that is over. Raises `TypeError` for an awaitable or a generator: its effect is still to come."""
    import inspect

    if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
        if inspect.iscoroutine(result):
            result.close()
        raise TypeError(
            f"a guarded call returned a {type(result).__name__}, which would run after its outcome is reported"
        )
    return result


def outcome_of(answer: GuardAnswer, error: str | None) -> Outcome:
    """Return the report of a started action: a success, or `error` in one word."""
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
    """Return, in one line for a log, why there is no report; of an error that is not the client's own, its type alone."""
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
    """Measures the time since it was made, including time in which the machine was suspended."""

    __slots__ = ("_monotonic", "_wall")

    def __init__(self) -> None:
        self._monotonic, self._wall = time.monotonic(), time.time()

    @property
    def seconds(self) -> float:
        """The larger of two measures: the monotonic clock, which nobody can set but which may stop while the machine is
        suspended, and the wall clock."""
        return max(time.monotonic() - self._monotonic, time.time() - self._wall)


def is_started_too_late(asked: Stopwatch, client: Client | AsyncClient, act_within_seconds: int | None) -> bool:
    """Return whether a start, requested when `asked` was made, was answered so late that a person may record it as not
    executed.

    No call exceeds its client's timeout by more than a busy machine adds, but a process that was suspended may be any
    time late.
    """
    most = max(2 * client.timeout_seconds, _LEAST_LATE_SECONDS)
    return asked.seconds > min(most, act_within_seconds or most)


def refused_start(answer: GuardAnswer, refused: Rejected) -> ClientError:
    """Return the error to raise, in place of entering the block, for a refused start."""
    if refused.code == "already-started":
        return AlreadyStarted(answer.idempotency_key)
    if refused.code == "permit-expired":
        return ActionExpired("the permit ran out before the start", is_final=False)
    if refused.status in (403, 409):
        # "permit-refused" for a permit that was just issued means a halt, and only the start is refused: guarding again
        # with the same key gives the current state.
        return ActionDenied(refused.code, refused.detail, is_final=refused.code != "permit-refused")
    return refused
