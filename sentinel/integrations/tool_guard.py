"""What all adapters share: a tool call through the table, the authority and back. The tool runs only with a started permit.

Every refusal is a `ClientError` (`ToolRefused`, `ActionDenied`, `ApprovalPending`, `ActionExpired`, `AlreadyStarted`,
`Rejected`, `Unreachable`), raised before the tool is called. An exception of the tool is reported as an error, which puts the
operation in doubt, and goes on; of a `ClientError` `is_of_tool` says that it is one. A call that is cancelled is not reported, nor is
one that its framework gave up while it may still act (`goes_on`).
"""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, AsyncExitStack, ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from sentinel.client import Client, ClientError, GuardAnswer, guarded
from sentinel.client.guarded import GoesOn, finished, never_goes_on, runs_as
from sentinel.client.transport import open_span
from sentinel.integrations.refusals import refusal_details
from sentinel.tools import ToolCall, ToolRefused, ToolTable

if TYPE_CHECKING:
    from sentinel.client import AsyncClient

Facts: TypeAlias = "Callable[[str, Mapping[str, Any]], Any] | Mapping[str, Any]"
"""What the program knows, by the names of the table's `facts`: (tool, arguments) → of this call, which may be a coroutine function; or what
is true of every call, of which a tool is told what it declares.
"""

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class CurrentOperation:
    """The operation under which a tool runs, and the headers that the table wants on the provider's request."""

    operation_id: str
    idempotency_key: str
    headers: Mapping[str, str]


_current: ContextVar[CurrentOperation | None] = ContextVar("sentinel_current_operation", default=None)


def current_operation() -> CurrentOperation | None:
    """Inside a guarded tool: its operation, e.g. for the provider's idempotency key. None outside, and in an unguarded tool."""
    return _current.get()


@dataclass(frozen=True, slots=True)
class Ran(Generic[R]):
    """The tool ran, and this is what it returned."""

    result: R


@dataclass(frozen=True, slots=True)
class Refused:
    """The tool was not called."""

    error: ClientError


@dataclass(frozen=True, slots=True)
class CallNames:
    """What a framework calls a call and the conversation that it is of, where it says so. Nothing rests on them: both may change on a resume."""

    call_id: Any = None
    conversation_id: Any = None


NO_NAMES = CallNames()
_NAME = re.compile(r"[A-Za-z0-9._:/@|-]{1,128}", re.ASCII)
"""What a span takes for a name: anything else may be text of a model's."""

Failed = Callable[[Any], bool]


def never_failed(result: Any) -> bool:
    """A result is a success; failures are raised."""
    return False


class ToolGuard:
    """Asks `client` about each call of a tool of `server`, as the table says. Thread-safe.

    `facts` says what the program knows of a call, and is asked only where the tool declares facts of the program; the model's
    arguments are never taken for them. From an event loop a plain function is called in a thread, for it may wait.
    `wait_seconds` is how long a call waits for a person before it raises `ApprovalPending`; `act_within_seconds` is how long a
    tool may take (None: the authority's own time), as in `guarded`.
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
            raise ValueError("facts is neither a mapping nor a function")
        self.table, self.client, self.server = table, client, server
        self.wait_seconds, self.act_within_seconds = wait_seconds, act_within_seconds
        self._facts = facts
        self._facts_may_block = facts is not None and not isinstance(facts, Mapping) and runs_as(facts) != "coroutine"

    def on_server(self, server: str) -> ToolGuard:
        """The same guard for the tools of another server."""
        if server == self.server:
            return self
        other = copy.copy(self)
        other.server = server
        return other

    @cached_property
    def async_client(self) -> AsyncClient:
        """The same client for event loops."""
        return self.client.as_async()

    def run(self, tool: str, arguments: Mapping[str, Any], call: Callable[[dict[str, Any]], R]) -> R:
        """`call` of the arguments to run with, under a started permit. Raises the refusal, or what `call` raises."""
        return _result(self.attempt(tool, arguments, call))

    async def run_async(
        self, tool: str, arguments: Mapping[str, Any], call: Callable[[dict[str, Any]], Awaitable[R]]
    ) -> R:
        """As `run`, awaited."""
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
        """As `run`, with a refusal as a value, so that an error of the tool itself is never taken for one.

        `failed` tells of a result that it stands for a failure of the tool, which is reported as an error too. `goes_on` tells of an
        exception of `call` that the tool may still act: then nothing is reported. `named` is for a span alone.
        """
        with ExitStack() as stack:
            span = stack.enter_context(self._span(named))
            try:
                given = self._own(tool, arguments)
                look_up = self._look_up(tool, arguments, given)
                asked = self._asked(tool, given, look_up() if callable(look_up) else look_up)
                run = None if asked.question is None else guarded(self.client, **self._options(asked))
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
        """As `attempt`, awaited."""
        async with AsyncExitStack() as stack:
            span = stack.enter_context(self._span(named))
            try:
                asked = await self.call_of_async(tool, arguments)
                run = None if asked.question is None else guarded(self.async_client, **self._options(asked))
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
        """Ask without starting: the id of the approval that this call waits for, or None where it may be attempted now.

        A refusal is None too: the attempt is refused, and tells the model why; so does an authority that cannot be asked.
        """
        try:
            return await self.approval_pending(tool, arguments)
        except ClientError:
            return None

    async def approval_pending(self, tool: str, arguments: Mapping[str, Any]) -> str | None:
        """As `approval_wanted`. Raises what passes (`Unreachable`, facts that cannot be read): nobody knows then whether the call waits."""
        try:
            asked = await self.call_of_async(tool, arguments)
            answer = None if asked.question is None else await self.async_client.guard(**asked.question)
        except ClientError as refused:
            if not refused.is_final:
                raise
            return None
        return answer.approval_id if answer is not None and answer.status == "pending" else None

    async def call_of_async(self, tool: str, arguments: Mapping[str, Any]) -> ToolCall:
        """The call as the table sees it, with the program's facts. Raises `ToolRefused`."""
        given = self._own(tool, arguments)
        known: Any = self._look_up(tool, arguments, given)
        if callable(known) and self._facts_may_block:
            import asyncio  # here: the hook of Claude Code has no loop, and it would double its start

            known = await asyncio.to_thread(known)
        elif callable(known):
            known = known()
        if inspect.isawaitable(known):
            known = await _awaited(tool, known)
        return self._asked(tool, given, known)

    def call_of(self, tool: str, arguments: Mapping[str, Any], facts: Any) -> ToolCall:
        """The call as the table sees it. Raises `ToolRefused`."""
        return self._asked(tool, self._own(tool, arguments), facts)

    def _own(self, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        # Before the facts are looked up: they, the question and the call are about one and the same.
        return self.table.own_arguments(self.server, tool, arguments)

    def _asked(self, tool: str, given: dict[str, Any], facts: Any) -> ToolCall:
        if inspect.isawaitable(facts):
            if inspect.iscoroutine(facts):
                facts.close()
            raise TypeError("facts are a coroutine: this tool must be called asynchronously")
        return self.table.call(self.server, tool, given, facts)

    def _span(self, named: CallNames) -> AbstractContextManager[Any]:
        """Around a call of a tool, where the agent's program uses OpenTelemetry; without arguments."""
        names = {"gen_ai.tool.call.id": named.call_id, "gen_ai.conversation.id": named.conversation_id}
        told = {
            "gen_ai.operation.name": "execute_tool", "gen_ai.agent.id": self.client.agent_id or "",
            **{name: value for name, value in names.items() if isinstance(value, str) and _NAME.fullmatch(value)},
        }  # fmt: skip
        return open_span("execute_tool", "INTERNAL", told)

    def _look_up(
        self, tool: str, arguments: Mapping[str, Any], given: dict[str, Any]
    ) -> Mapping[str, Any] | Callable[[], Any]:
        """The call's facts where they are known already; else what looks them up, whose result may have to be awaited."""
        mapping = self.table.find(self.server, tool)
        declared = mapping.program_facts if mapping is not None else set()
        if self._facts is None or not declared:
            return {}
        if isinstance(self._facts, Mapping):
            return {name: value for name, value in self._facts.items() if name in declared}
        # A copy: what looks up facts changes nothing of the call. It finds every name that the call has, nulls too.
        return partial(_looked_up, self._facts, tool, {**dict.fromkeys(arguments), **self._own(tool, given)})

    def _options(self, asked: ToolCall) -> dict[str, Any]:
        assert asked.question is not None
        own = {"act_within_seconds": self.act_within_seconds, "wait_seconds": self.wait_seconds}
        return {**asked.question, **own}


def _tell(span: Any, asked: ToolCall, answer: GuardAnswer | None) -> None:
    """What a span says of a call that may be made."""
    if span is None:
        return
    span.set_attribute("gen_ai.tool.name", asked.mapping.name)
    if answer is not None:
        told = {"decision": answer.decision, "reason_code": answer.reason_code, "operation_id": answer.operation_id}
        span.set_attributes({f"sentinel.{name}": value for name, value in told.items()})


def _refused(span: Any, error: ClientError) -> Refused:
    """The refusal, which the span says too. Not the tool's name: it may be any text of the model's."""
    if span is not None:
        told = refusal_details(error)
        names = ("decision", "reason_code", "approval_id")
        span.set_attributes({f"sentinel.{name}": told[name] for name in names if name in told})
    return Refused(error)


@contextmanager
def _running(asked: ToolCall, answer: GuardAnswer | None) -> Iterator[dict[str, str]]:
    """The tool's time: its operation is the current one, and none in an unguarded tool. Gives the arguments to inject."""
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
    why = f"{tool}: what the program knows could not be read ({type(error).__name__})"
    return ToolRefused("facts_unavailable", why, is_final=False)
