"""critic_check: the critic's opinion. It can only send a row to a person, never speak for it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache

from sentinel.core.money import Money
from worker.critic.case import CriticCase, Opinion
from worker.critic.critic import Critic
from worker.refunds.concurrency import WorkerPool
from worker.refunds.workflow.escalations import Escalation
from worker.refunds.workflow.graph import StepName
from worker.refunds.workflow.runner import RunContext, StepResult, to_person


class CriticCheck:
    """The rules critic for every row, the model critic where the branch asks for it."""

    name = StepName.CRITIC_CHECK

    def __init__(self, critic: Critic, worker_pool: WorkerPool, also_with_model: Collection[str] = ()) -> None:
        self._critic, self._worker_pool, self._also = critic, worker_pool, frozenset(also_with_model)

    def prepare(self, contexts: Sequence[RunContext]) -> None:
        """The rules take microseconds; a model is asked for several rows at a time."""
        with_model = []
        for context in contexts:
            if self._wants_model(context):
                with_model.append(context)
            else:
                context.opinion = self._critic.judge(case_of(context), wants_model=False)
        opinions: list[Opinion] = self._worker_pool.map(
            lambda context: self._critic.judge(case_of(context), wants_model=True), with_model
        )
        for context, opinion in zip(with_model, opinions, strict=True):
            context.opinion = opinion

    def _wants_model(self, context: RunContext) -> bool:
        route = context.route
        return route is not None and (route.critic == "model" or not self._also.isdisjoint({route.name, "all"}))

    def run(self, context: RunContext) -> StepResult:
        """To the customer or the authority; to a person on anything but a clear yes."""
        opinion, route = context.opinion, context.route
        following = StepName.CONFIRM_CARD if route is not None and route.confirm_card else StepName.ASK_AUTHORITY
        if opinion is None:
            return to_person(context, Escalation.CRITIC_ERROR, following)
        if opinion.approved and not opinion.reason:
            return _approved(opinion.layer, opinion.reason_code, opinion.detail_code, following)
        output = {"layer": opinion.layer, "code": opinion.reason_code, "detail": opinion.detail_code}
        if opinion.reason:
            output["words"] = opinion.reason
        if opinion.approved:
            return StepResult(output, following, tool_used="critic")
        return to_person(context, Escalation(opinion.reason_code), following, **output)


@cache
def _approved(layer: str, code: str, detail: str, following: StepName) -> StepResult:
    return StepResult({"layer": layer, "code": code, "detail": detail}, following, tool_used="critic")


def case_of(context: RunContext) -> CriticCase:
    """What a critic is shown."""
    row, facts, order = context.row, context.facts, context.order

    def money(minor: int | None) -> Money | None:
        return Money(minor, order.currency) if order is not None and minor is not None else None

    return CriticCase(
        channel=row.channel, scenario=row.scenario, mode=row.mode, requested=row.money,
        paid=money(order.paid_minor) if order else None, item_paid=money(order.item_paid_minor) if order else None,
        shipping_fee=money(order.shipping_fee_minor) if order else None, reason=facts.reason,
        order_note=order.note if order else None,
        image_text=" ".join(reading.text for reading in context.readings if reading.text) or None,
        same_text_accounts=facts.same_text_accounts,
    )  # fmt: skip
