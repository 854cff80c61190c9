"""Shared by all adapters: maps a tool call by the table, asks the authority, and runs the tool only with a started
permit.

Every refusal is a `ClientError` (`ToolRefused`, `ActionDenied`, `ApprovalPending`, `ActionExpired`, `AlreadyStarted`,
`Rejected`, `Unreachable`), raised before the tool is called. An exception of the tool is reported as an error, which puts the
operation in doubt, and is raised again; if it is a `ClientError`, its `is_of_tool` is set. The outcome of a cancelled
call is not reported, nor that of one which its framework gave up while it may still act (`goes_on`).
"""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, AsyncExitStack, ExitStack, contextmanager, suppress
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from sentinel.client import Client, ClientError, GuardAnswer, guarded
from sentinel.client.guarded import GoesOn, finished, first_answer, never_goes_on, runs_as
from sentinel.client.transport import open_span
from sentinel.integrations.refusals import is_outage, refusal_details
from sentinel.tools import ToolCall, ToolRefused, ToolTable

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from concurrent.futures import ThreadPoolExecutor

    from sentinel.client import AsyncClient

Facts: TypeAlias = "Callable[[str, Mapping[str, Any]], Any] | Mapping[str, Any]"
"""What the program knows, by the names of the table's `facts`: a function (tool, arguments) → facts of this call, which
may be a coroutine function; or a mapping of facts that are true of every call, of which each tool gets those that it
declares.
"""

R = TypeVar("R")
_LOOK_UPS_AT_ONCE = 32
"""Look-ups of facts that may be under way on one event loop; further ones wait for them."""


@dataclass(frozen=True, slots=True)
class CurrentOperation:
    """The operation under which a tool runs, and the headers that the table wants on the provider's request."""

    operation_id: str
    idempotency_key: str
    headers: Mapping[str, str]


_current: ContextVar[CurrentOperation | None] = ContextVar("sentinel_current_operation", default=None)


def current_operation() -> CurrentOperation | None:
    """Return, inside a guarded tool, its operation, e.g. for the provider's idempotency key. None outside, and in an unguarded tool."""
    return _current.get()


@dataclass(frozen=True, slots=True)
class Ran(Generic[R]):
    """The tool ran and returned `result`."""

    result: R


@dataclass(frozen=True, slots=True)
class Refused:
    """The tool was not called."""

    error: ClientError


@dataclass(frozen=True, slots=True)
class CallNames:
    """The framework's ids of a call and of its conversation, if it gives them. They are only for spans: both may change on a resume."""

    call_id: Any = None
    conversation_id: Any = None


NO_NAMES = CallNames()
_NAME = re.compile(r"[A-Za-z0-9._:/@|-]{1,128}", re.ASCII)
"""The form of an id that may be put on a span: anything else could be text that a model wrote."""

Failed = Callable[[Any], bool]


def never_failed(result: Any) -> bool:
    """Return False: by default every result is a success, and failures are raised."""
    return False


class ToolGuard:
    """Asks `client` about each call of a tool of `server`, as the table says. Thread-safe.

    `facts` gives what the program knows of a call, and is used only where the tool declares facts of the program; the
    model's arguments are never taken for facts. On an event loop a plain function is called in a thread, because it may
    block, at most 32 at once. `wait_seconds` is how long a call waits for a person before it raises `ApprovalPending`;
    `act_within_seconds` is how long a tool may take (None: the authority's default), as in `guarded`.
    """

    def __init__(
        self,
        table: ToolTable,
        client: Client,
        *,
        server: str = "local",
        facts: Facts | None = None,
        wait_seconds: float = 0.0,
        act_within_seconds: int | None = None,
    ) -> None:
        if facts is not None and not isinstance(facts, Mapping) and not callable(facts):
            raise ValueError("facts must be a mapping or a function")
        self.table, self.client, self.server = table, client, server
        self.wait_seconds, self.act_within_seconds = wait_seconds, act_within_seconds
        self._facts = facts
        self._facts_may_block = facts is not None and not isinstance(facts, Mapping) and runs_as(facts) != "coroutine"
        self._threads: WeakKeyDictionary[AbstractEventLoop, ThreadPoolExecutor] = WeakKeyDictionary()

    def on_server(self, server: str) -> ToolGuard:
        """Return the same guard for the tools of another server."""
        if server == self.server:
            return self
        other = copy.copy(self)
        other.server = server
        return other

    @cached_property
    def async_client(self) -> AsyncClient:
        """The same client for an event loop, made on first use."""
        return self.client.as_async()

    def run(self, tool: str, arguments: Mapping[str, Any], call: Callable[[dict[str, Any]], R]) -> R:
        """Run `call` with the arguments that were asked about, under a started permit. Raises the refusal, or what `call` raises."""
        return _result(self.attempt(tool, arguments, call))

    async def run_async(
        self, tool: str, arguments: Mapping[str, Any], call: Callable[[dict[str, Any]], Awaitable[R]]
    ) -> R:
        """Do the same as `run`, awaited."""
        return _result(await self.attempt_async(tool, arguments, call))

    def attempt(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        call: Callable[[dict[str, Any]], R],
        failed: Failed = never_failed,
        named: CallNames = NO_NAMES,
        goes_on: GoesOn = never_goes_on,
    ) -> Ran[R] | Refused:
        """Do the same as `run`, but return a refusal as a value, so that an error of the tool itself is never taken for
        one.

        `failed` says whether a result stands for a failure of the tool, which is reported as an error too. `goes_on`
        says of an exception of `call` whether the tool may still act: then nothing is reported. `named` is only for the
        span.
        """
        with ExitStack() as stack:
            span = stack.enter_context(self._span(named))
            try:
                given = self._own(tool, arguments)
                look_up = self._look_up(tool, arguments, given)
                asked = self._asked(tool, given, look_up() if callable(look_up) else look_up)
                run = None if asked.question is None else self._run(self.client, asked)
                answer = stack.enter_context(run) if run else None
            except ClientError as refusal:
                return _refused(span, refusal)
            if run:
                run.goes_on = goes_on
            _tell(span, asked, answer)
            result = finished(call({**asked.arguments, **stack.enter_context(_running(asked, answer))}))
            if run and failed(result):
                run.failure = "ToolFailed"
            return Ran(result)

    async def attempt_async(
        self, tool: str, arguments: Mapping[str, Any], call: Callable[[dict[str, Any]], Awaitable[R]],
        failed: Failed = never_failed, named: CallNames = NO_NAMES, goes_on: GoesOn = never_goes_on,
    ) -> Ran[R] | Refused:  # fmt: skip
        """Do the same as `attempt`, awaited."""
        async with AsyncExitStack() as stack:
            span = stack.enter_context(self._span(named))
            try:
                asked = await self.call_of_async(tool, arguments)
                run = None if asked.question is None else self._run(self.async_client, asked)
                answer = await stack.enter_async_context(run) if run else None
            except ClientError as refusal:
                return _refused(span, refusal)
            if run:
                run.goes_on = goes_on
            _tell(span, asked, answer)
            result = finished(await call({**asked.arguments, **stack.enter_context(_running(asked, answer))}))
            if run and failed(result):
                run.failure = "ToolFailed"
            return Ran(result)

    async def approval_wanted(self, tool: str, arguments: Mapping[str, Any]) -> str | None:
        """Guard without starting. Returns the id of the approval that this call waits for, or None where it may be
        attempted now.

        Returns None for a refusal or an unreachable authority too: the attempt is then refused, and tells the model
        why.
        """
        try:
            return await self.approval_pending(tool, arguments)
        except ClientError:
            return None

    async def approval_pending(self, tool: str, arguments: Mapping[str, Any]) -> str | None:
        """Do the same as `approval_wanted`, but raise for an outage (`is_outage`): then nobody knows whether the call waits
        for a person."""
        try:
            asked = await self.call_of_async(tool, arguments)
            answer = None if asked.question is None else await self.answer_to(asked)
        except ClientError as refused:
            if is_outage(refused):
                raise
            return None
        return answer.approval_id if answer is not None and answer.status == "pending" else None

    async def answer_to(self, asked: ToolCall, **named: Any) -> GuardAnswer:
        """Ask about a mapped call that is guarded, with the facts of its first time (`ToolCall.as_first_asked`). Raises
        as the client's `guard`, and `ActionDenied` where the facts have become worse."""
        assert asked.question is not None
        question: Any = {**asked.question, **named}
        return (await first_answer(self.async_client, question, asked.as_first_asked))[1]

    async def call_of_async(self, tool: str, arguments: Mapping[str, Any]) -> ToolCall:
        """Map the call by the table, with the program's facts looked up. Raises `ToolRefused`."""
        given = self._own(tool, arguments)
        known: Any = self._look_up(tool, arguments, given)
        if callable(known) and self._facts_may_block:
            known = await self._in_thread(known)
        elif callable(known):
            known = known()
        if inspect.isawaitable(known):
            known = await _awaited(tool, known)
        return self._asked(tool, given, known)

    async def _in_thread(self, look_up: Callable[[], Any]) -> Any:
        """Look facts up in a thread, not in one of the loop's: look-ups that hang would take those from the rest of the
        agent's program, and the loop's end would wait for them."""
        # Imported here: the hook of Claude Code, which has no loop, would take twice as long to start.
        import asyncio
        from concurrent.futures import ThreadPoolExecutor

        loop, context = asyncio.get_running_loop(), copy_context()
        threads = self._threads.get(loop)
        if threads is None:
            # Other threads, with loops of their own, may add and forget theirs at the same time.
            for other in self._threads.keyrefs():
                ended = other()
                if ended is not None and ended.is_closed():
                    self._threads.pop(ended, None)
            threads = self._threads[loop] = ThreadPoolExecutor(_LOOK_UPS_AT_ONCE, thread_name_prefix="facts")
        return await loop.run_in_executor(threads, lambda: context.run(look_up))

    def call_of(self, tool: str, arguments: Mapping[str, Any], facts: Any) -> ToolCall:
        """Map the call by the table, with these facts. Raises `ToolRefused`."""
        return self._asked(tool, self._own(tool, arguments), facts)

    def _own(self, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        # Copied before the facts are looked up, so that facts, question and tool call all use the same arguments.
        return self.table.own_arguments(self.server, tool, arguments)

    def _asked(self, tool: str, given: dict[str, Any], facts: Any) -> ToolCall:
        if inspect.isawaitable(facts):
            if inspect.iscoroutine(facts):
                facts.close()
            raise TypeError(
                "facts must be looked up by a plain function where the tool is called synchronously: this one returned an awaitable"
            )
        return self.table.call(self.server, tool, given, facts)

    def _span(self, named: CallNames) -> AbstractContextManager[Any]:
        """Return a span around a tool call, where the agent's program uses OpenTelemetry; it does not hold the arguments."""
        names = {"gen_ai.tool.call.id": named.call_id, "gen_ai.conversation.id": named.conversation_id}
        told = {
            "gen_ai.operation.name": "execute_tool", "gen_ai.agent.id": self.client.agent_id or "",
            **{name: value for name, value in names.items() if isinstance(value, str) and _NAME.fullmatch(value)},
        }  # fmt: skip
        return open_span("execute_tool", "INTERNAL", told)

    def _look_up(
        self, tool: str, arguments: Mapping[str, Any], given: dict[str, Any]
    ) -> Mapping[str, Any] | Callable[[], Any]:
        """Return the call's facts if they are known already; else a function that looks them up and may return an awaitable."""
        mapping = self.table.find(self.server, tool)
        declared = mapping.program_facts if mapping is not None else set()
        if self._facts is None or not declared:
            return {}
        if isinstance(self._facts, Mapping):
            return {name: value for name, value in self._facts.items() if name in declared}
        # The function gets a copy, so that it cannot change the call. The copy has every name of the call, also those
        # with nulls.
        return partial(_looked_up, self._facts, tool, {**dict.fromkeys(arguments), **self._own(tool, given)})

    def _run(self, client: Any, asked: ToolCall) -> Any:
        """Return the guarded run of a call, of the client's kind."""
        assert asked.question is not None
        own = {"act_within_seconds": self.act_within_seconds, "wait_seconds": self.wait_seconds}
        options: dict[str, Any] = {**asked.question, **own}
        run = guarded(client, **options)
        run.on_conflict = asked.as_first_asked
        return run


def _tell(span: Any, asked: ToolCall, answer: GuardAnswer | None) -> None:
    """Put on the span what is known of a call that may be made: tool, decision, reason code and operation."""
    if span is None:
        return
    span.set_attribute("gen_ai.tool.name", asked.mapping.name)
    if answer is not None:
        told = {"decision": answer.decision, "reason_code": answer.reason_code, "operation_id": answer.operation_id}
        span.set_attributes({f"sentinel.{name}": value for name, value in told.items()})


def _refused(span: Any, error: ClientError) -> Refused:
    """Return the refusal and put it on the span. The tool's name is left out: it may be any text that the model wrote."""
    if span is not None:
        told = refusal_details(error)
        names = ("decision", "reason_code", "approval_id")
        span.set_attributes({f"sentinel.{name}": told[name] for name in names if name in told})
    return Refused(error)


@contextmanager
def _running(asked: ToolCall, answer: GuardAnswer | None) -> Iterator[dict[str, str]]:
    """Make the call's operation the current one (None for an unguarded tool) while the tool runs. Yields the arguments to inject."""
    operation, injected = None, dict[str, str]()
    if answer is not None:
        headers = asked.injected("header", operation_id=answer.operation_id)
        operation = CurrentOperation(answer.operation_id, answer.idempotency_key, headers)
        injected = asked.injected("argument", operation_id=answer.operation_id)
    token = _current.set(operation)
    try:
        yield injected
    except ClientError as own:
        own.is_of_tool = True
        raise
    finally:
        # A call that was given up with its loop is closed in another context, which does not know the token. An error
        # from here would take the place of the exit, and be reported.
        with suppress(ValueError):
            _current.reset(token)


def _result(attempted: Ran[R] | Refused) -> R:
    if isinstance(attempted, Refused):
        raise attempted.error
    return attempted.result


def _looked_up(facts: Callable[[str, Mapping[str, Any]], Any], tool: str, arguments: Mapping[str, Any]) -> Any:
    try:
        return facts(tool, arguments)
    except Exception as error:
        raise _without_facts(tool, error) from error


async def _awaited(tool: str, known: Awaitable[Any]) -> Any:
    try:
        return await known
    except Exception as error:
        raise _without_facts(tool, error) from error


def _without_facts(tool: str, error: Exception) -> ToolRefused:
    why = f"{tool}: the program's facts could not be read ({type(error).__name__})"
    return ToolRefused("facts_unavailable", why, is_final=False)
