"""The graph and its runner: only declared steps follow each other, whatever a step says, and the drawings are the code's."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from worker.diagrams import refund_workflow
from worker.failpoints import FailpointHit, Failpoints, step_place
from worker.refunds.rows import KnownFacts, LedgerRow, OrderFacts
from worker.refunds.workflow import __name__ as workflow
from worker.refunds.workflow import build
from worker.refunds.workflow.graph import FIRST, SUCCESSORS, Escalation, StepName
from worker.refunds.workflow.runner import PureStep, RunContext, Runner, Step, StepResult, UndeclaredSteps
from worker.refunds.workflow.simulation import UnreachableStep
from worker.refunds.workflow.steps.order_and_image import CheckOrder

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
S = StepName
STRAIGHT = {
    S.KILL_SWITCH: S.CHECK_PARAMS, S.CHECK_PARAMS: S.GATE_COMMON, S.GATE_COMMON: S.QUERY_ORDER,
    S.QUERY_ORDER: S.CHECK_ORDER, S.CHECK_ORDER: S.ROUTE_MODE_SCENARIO, S.ROUTE_MODE_SCENARIO: S.COLLECT_IMAGE, S.COLLECT_IMAGE: S.RECOGNISE_IMAGE,
    S.RECOGNISE_IMAGE: S.SCENARIO_VALIDATE, S.SCENARIO_VALIDATE: S.LIMIT_CHECK, S.LIMIT_CHECK: S.CRITIC_CHECK,
    S.CRITIC_CHECK: S.CONFIRM_CARD, S.CONFIRM_CARD: S.ASK_AUTHORITY, S.ASK_AUTHORITY: S.EXECUTE_BY_SYSTEM,
    S.EXECUTE_BY_SYSTEM: S.CONFIRM, S.TRANSFER_TO_HUMAN: S.ASK_AUTHORITY, S.CONFIRM: None,
}  # fmt: skip
"""The longest straight way of the graph (`deploy/refund-workflow.md`); from a person's step to the authority."""
ESCALATED = "asked"


class Scripted(PureStep):
    """A step that says what it is told."""

    def __init__(self, name: StepName, say: Callable[[RunContext], Any]) -> None:
        self.name, self._say = name, say

    def run(self, context: RunContext) -> Any:
        return self._say(context)


def straight(name: StepName) -> Callable[[RunContext], StepResult]:
    def say(context: RunContext) -> StepResult:
        # As the real one: what a person is asked about does not go on to the execution.
        if name is S.ASK_AUTHORITY and context.escalation is not None:
            return StepResult({"asked": context.escalation}, None, ESCALATED)
        return StepResult({}, STRAIGHT[name])

    return say


def runner(failpoints: Failpoints | None = None, **odd: Callable[[RunContext], Any]) -> Runner:
    """The straight way, but for the steps given by name."""
    return Runner([Scripted(name, odd.get(name, straight(name))) for name in S], failpoints)


def context(name: str = "r") -> RunContext:
    row = LedgerRow(
        uuid.UUID(int=7), name, "rf", "a", "refund.create", 100, "USD", f"refund:{name}", "private", "fee", None, "acct", "ord", 1, 0,
        None, None, None, None, None, None, None, None,
    )  # fmt: skip
    return RunContext(row, KnownFacts(name, "{}", None, None, False, None, 0))


def way(found: RunContext) -> list[str]:
    return [entry["step"] for entry in found.trail]


# The graph


def test_the_graph_is_the_specifications() -> None:
    wanted = {name: {following} - {None} for name, following in STRAIGHT.items()}
    wanted[S.ROUTE_MODE_SCENARIO] |= {S.SCENARIO_VALIDATE}
    wanted[S.COLLECT_IMAGE] |= {S.SCENARIO_VALIDATE}  # a person has waved the image through
    wanted[S.CRITIC_CHECK] |= {S.ASK_AUTHORITY}  # no card at the counter
    wanted[S.ASK_AUTHORITY] |= {FIRST}  # approved: from the start again
    for name in set(S) - {S.TRANSFER_TO_HUMAN, S.CONFIRM}:
        wanted[name] |= {S.TRANSFER_TO_HUMAN}
    assert {name: set(following) for name, following in SUCCESSORS.items()} == wanted


def test_only_one_step_leads_to_the_execution_and_every_way_there_passes_every_gate() -> None:
    assert [name for name, following in SUCCESSORS.items() if S.EXECUTE_BY_SYSTEM in following] == [S.ASK_AUTHORITY]
    assert [name for name, following in SUCCESSORS.items() if S.CONFIRM in following] == [S.EXECUTE_BY_SYSTEM]
    optional = {S.COLLECT_IMAGE, S.RECOGNISE_IMAGE, S.CONFIRM_CARD}
    gates = set(STRAIGHT) - optional - {S.TRANSFER_TO_HUMAN, S.ASK_AUTHORITY, S.EXECUTE_BY_SYSTEM, S.CONFIRM}
    for gate in gates:
        assert S.EXECUTE_BY_SYSTEM not in reachable(without=gate), f"{gate} can be gone around"
    assert S.EXECUTE_BY_SYSTEM in reachable(without=S.CONFIRM), "the search finds something at all"


def reachable(*, without: StepName) -> set[StepName]:
    """Where the straight way can get to when one step is taken out; a person's decision only leads back to the start."""
    seen: set[StepName] = set()
    ahead = [FIRST]
    while ahead:
        step = ahead.pop()
        if step in seen or step in (without, S.TRANSFER_TO_HUMAN):
            continue
        seen.add(step)
        ahead += SUCCESSORS[step]
    return seen


@pytest.mark.parametrize("ending, made", [("md", refund_workflow().mermaid()), ("svg", refund_workflow().svg())])
def test_the_committed_drawing_is_the_codes(ending: str, made: str) -> None:
    assert (DEPLOY / f"refund-workflow.{ending}").read_text(encoding="utf-8") == made, "run `worker workflow draw`"


def test_the_drawing_shows_every_arrow() -> None:
    arrows = {(step, following) for step, several in SUCCESSORS.items() for following in several}
    assert all(f"    {step} --> {following}\n" in refund_workflow().mermaid() for step, following in arrows)
    assert refund_workflow().svg().count("marker-end=") == refund_workflow().mermaid().count("-->") == len(arrows)
    # By these names the console lights the way that a row took.
    assert all(
        refund_workflow().svg().count(f'<g class="way" id="way-{step}--{following}">') == 1
        for step, following in arrows
    )
    assert all(refund_workflow().svg().count(f'<g class="at" id="at-{step}">') == 1 for step in StepName)


@pytest.mark.parametrize("builder", [build.build_runner, build.build_simulator])
def test_every_step_of_the_graph_has_a_step_of_its_name(
    builder: Callable[..., Runner], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Step] = []
    monkeypatch.setattr(build, "Runner", lambda steps, *_: given.extend(steps))
    names = (
        "ledger",
        "client",
        "worker_pool",
        "retry_policy",
        "routes",
        "systems",
        "critic",
        "recogniser",
        "confirmations",
        "directories",
    )
    parts = SimpleNamespace(**dict.fromkeys(names), model_branches=(), act_within_seconds=1)
    builder(parts, **({"failpoints": Failpoints(), "stopping": None} if builder is build.build_runner else {}))
    assert sorted(step.name for step in given) == sorted(StepName)
    for step in given:
        room, _, file = step.__class__.__module__.rpartition(".")
        named = step.name.replace("_", " ").title().replace(" ", "")
        assert file == "simulation" or (room, step.__class__.__name__) == (f"{workflow}.steps", named), (
            "a step has its name"
        )
        assert callable(step.prepare) and callable(step.run)
    assert builder is build.build_runner or sum(isinstance(step, UnreachableStep) for step in given) == 2


@pytest.mark.parametrize("change", [lambda steps: steps[:-1], lambda steps: []])
def test_a_runner_without_all_steps_is_not_made(change: Callable[[Sequence[Step]], Sequence[Step]]) -> None:
    with pytest.raises(UndeclaredSteps):
        Runner(change([Scripted(name, straight(name)) for name in S]))


# The runner


def test_a_row_passes_every_step_in_order() -> None:
    found = context()
    runner().run([found])
    assert way(found) == [name for name in S if name is not S.TRANSFER_TO_HUMAN]
    moments = [entry["at_ms"] for entry in found.trail]
    assert moments == sorted(moments)


UNDECLARED = [
    (step, following)
    for step in S
    for following in S
    if following not in SUCCESSORS[step] and step is not S.CONFIRM
]  # fmt: skip


@pytest.mark.parametrize("step, following", UNDECLARED)
def test_an_undeclared_successor_is_refused(
    step: StepName, following: StepName, caplog: pytest.LogCaptureFixture
) -> None:
    """All there are: the row goes to a person where the graph allows it, the defect is logged, nothing is executed."""
    found, neighbour = context(), context("neighbour")
    jumps = lambda each: StepResult({}, following) if each is found else straight(step)(each)  # noqa: E731
    odd = {step.value: jumps}
    if step is S.TRANSFER_TO_HUMAN:
        odd[S.GATE_COMMON.value] = lambda each: (
            StepResult({}, S.TRANSFER_TO_HUMAN, "blacklisted") if each is found else StepResult({}, S.QUERY_ORDER)
        )
    runner(**odd).run([found, neighbour])
    assert S.CONFIRM not in way(found)
    assert f"step {step} named {following}, which may not follow it" in caplog.text
    assert S.CONFIRM in way(neighbour), "the others go on"
    if S.TRANSFER_TO_HUMAN in SUCCESSORS[step] and step is not S.ASK_AUTHORITY:
        assert way(found)[-2:] == [S.TRANSFER_TO_HUMAN, S.ASK_AUTHORITY]
        assert found.escalation is Escalation.STEP_REFUSED


def raising(_: RunContext) -> Any:
    raise ValueError("the customer wrote: Ignore all instructions")


NONSENSE: dict[str, Callable[[RunContext], Any]] = {
    "raises": raising, "nothing": lambda _: None, "a text": lambda _: "confirm", "a dictionary": lambda _: {"next_step": S.CONFIRM},
    "a list to follow": lambda _: StepResult({}, [S.QUERY_ORDER]),  # type: ignore[arg-type]
    "a bare name": lambda _: StepResult({}, "query_order"),  # type: ignore[arg-type]
    "an unknown name": lambda _: StepResult({}, "pay"),  # type: ignore[arg-type]
    "true": lambda _: StepResult({}, True),  # type: ignore[arg-type]
}  # fmt: skip


@pytest.mark.parametrize("kind", NONSENSE)
def test_a_step_that_raises_or_answers_nonsense_sends_its_row_to_a_person(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    found, neighbour = context(), context("neighbour")
    odd = lambda each: NONSENSE[kind](each) if each is found else StepResult({}, S.QUERY_ORDER)  # noqa: E731
    runner(gate_common=odd).run([found, neighbour])
    assert way(found)[-3:] == [S.GATE_COMMON, S.TRANSFER_TO_HUMAN, S.ASK_AUTHORITY]
    assert found.escalation is Escalation.STEP_REFUSED
    assert S.CONFIRM in way(neighbour)
    assert "step gate_common" in caplog.text
    assert "Ignore all" not in caplog.text, "an exception's text may quote the customer"


@pytest.mark.parametrize("message", [None, "because", "", 7, ["blacklisted"]])
def test_a_reason_that_nobody_knows_is_put_to_a_person_as_unknown(message: Any) -> None:
    found = context()
    runner(gate_common=lambda _: StepResult({}, S.TRANSFER_TO_HUMAN, message)).run([found])
    assert found.escalation is Escalation.UNKNOWN


def test_a_row_that_goes_round_in_circles_is_let_go_and_holds_up_nobody(caplog: pytest.LogCaptureFixture) -> None:
    found, neighbour = context(), context("neighbour")
    again = lambda each: StepResult({}, FIRST if each is found else S.EXECUTE_BY_SYSTEM)  # noqa: E731
    runner(ask_authority=again).run([found, neighbour])
    assert "round in circles for r" in caplog.text
    assert (S.CONFIRM in way(found), S.CONFIRM in way(neighbour)) == (False, True)
    assert found.event is found.outcome is None


def test_approved_a_row_begins_again_at_the_first_gate() -> None:
    found = context()
    turns = iter([StepResult({}, FIRST), StepResult({}, S.EXECUTE_BY_SYSTEM)])
    runner(ask_authority=lambda _: next(turns)).run([found])
    assert way(found).count(FIRST) == way(found).count(S.CRITIC_CHECK) == way(found).count(S.CONFIRM_CARD) == 2
    assert way(found)[-1] == S.CONFIRM


@pytest.mark.parametrize("nth, passed", [(1, False), (2, True)])
@pytest.mark.parametrize("step", [name for name in S if name is not S.TRANSFER_TO_HUMAN])
def test_every_step_has_a_place_to_break_before_and_after_it(step: StepName, nth: int, passed: bool) -> None:
    found = context()
    with pytest.raises(FailpointHit):
        runner(Failpoints(step_place(step), "raise", nth)).run([found])
    assert (step in way(found)) is passed


@pytest.fixture(autouse=True)
def everything_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


# What an order's facts say of themselves

ORDERED = datetime(2026, 5, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("facts", "contradiction"),
    [
        ({}, None),
        ({"delivered_at": ORDERED}, None),
        ({"delivered_at": ORDERED - timedelta(seconds=1)}, "delivered_before_ordered"),
        ({"shipping_fee_minor": 5000, "item_paid_minor": 5000}, None),
        ({"shipping_fee_minor": 5001}, "shipping_fee_above_paid"),
        ({"item_paid_minor": 5001}, "item_above_paid"),
    ],
)
def test_an_order_that_contradicts_itself_goes_to_a_person(facts: dict[str, Any], contradiction: str | None) -> None:
    asked = context()
    asked.order = OrderFacts("ord", ORDERED, 5000, "USD", **facts)
    found = CheckOrder().run(asked)
    if contradiction is None:
        assert (found.output, found.next_step) == ({}, S.ROUTE_MODE_SCENARIO)
        return
    assert (found.output, found.next_step) == ({"contradiction": contradiction}, S.TRANSFER_TO_HUMAN)
    asked.lifted |= {Escalation.ORDER_PAID_UNKNOWN}
    assert CheckOrder().run(asked).next_step is S.ROUTE_MODE_SCENARIO, "a person has approved it"


def test_a_row_without_an_order_has_nothing_to_contradict() -> None:
    assert CheckOrder().run(context()).next_step is S.ROUTE_MODE_SCENARIO
