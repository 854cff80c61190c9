"""Builds the workflow: every step of the graph with its dependencies."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from sentinel.client import Client
from worker.critic.critic import Critic
from worker.failpoints import Failpoints
from worker.images import Recogniser
from worker.refunds.concurrency import WorkerPool
from worker.refunds.confirmations import Confirmations
from worker.refunds.ledger import Ledger
from worker.refunds.transitions import RetryPolicy
from worker.refunds.workflow.graph import StepName
from worker.refunds.workflow.routes import Routes
from worker.refunds.workflow.runner import Runner, Step
from worker.refunds.workflow.simulation import CheckAuthority, ReadConfirmCard, UnreachableStep
from worker.refunds.workflow.steps.ask_authority import AskAuthority, ConfirmCard, LimitCheck, TransferToHuman
from worker.refunds.workflow.steps.checks import (
    CheckParams,
    CriticCheck,
    GateCommon,
    KillSwitch,
    RouteModeScenario,
    ScenarioValidate,
)
from worker.refunds.workflow.steps.execute_by_system import Confirm, ExecuteBySystem
from worker.refunds.workflow.steps.order_and_image import (
    CheckOrder,
    CollectImage,
    OrderDirectory,
    QueryOrder,
    RecogniseImage,
)
from worker.settlement.registry import Systems
from worker.switch_cache import SwitchCache


@dataclass(frozen=True, slots=True)
class Dependencies:
    """What the steps are built from."""

    ledger: Ledger
    client: Client
    worker_pool: WorkerPool
    retry_policy: RetryPolicy
    routes: Routes
    systems: Systems
    critic: Critic
    recogniser: Recogniser
    confirmations: Confirmations
    directories: Mapping[str, OrderDirectory]
    model_branches: Collection[str]
    act_within_seconds: int = 150


def build_runner(parts: Dependencies, *, failpoints: Failpoints, stopping: threading.Event) -> Runner:
    """A runner with the real steps."""
    card, switch_cache = ConfirmCard(parts.confirmations, parts.systems), SwitchCache(parts.client)
    acting_steps: list[Step] = [
        RecogniseImage(parts.ledger, parts.worker_pool, parts.recogniser),
        card,
        AskAuthority(
            ledger=parts.ledger, client=parts.client, worker_pool=parts.worker_pool, retry_policy=parts.retry_policy, systems=parts.systems,
            failpoints=failpoints, stopping=stopping, switch_cache=switch_cache, act_within_seconds=parts.act_within_seconds,
        ),
        ExecuteBySystem(
            ledger=parts.ledger, client=parts.client, worker_pool=parts.worker_pool, retry_policy=parts.retry_policy, systems=parts.systems,
            failpoints=failpoints, act_within_seconds=parts.act_within_seconds,
        ),
        Confirm(parts.ledger, parts.retry_policy, failpoints),
    ]  # fmt: skip
    return Runner([*_read_only_steps(parts, card, switch_cache, stopping), *acting_steps], failpoints)


def build_simulator(parts: Dependencies) -> Runner:
    """A runner that ends before anything is recorded, sent or moved."""
    card = ConfirmCard(parts.confirmations, parts.systems)
    simulated_steps: list[Step] = [
        RecogniseImage(parts.ledger, parts.worker_pool, parts.recogniser, keeps=False),
        ReadConfirmCard(card),
        CheckAuthority(parts.client, parts.worker_pool, parts.systems),
        UnreachableStep(StepName.EXECUTE_BY_SYSTEM),
        UnreachableStep(StepName.CONFIRM),
    ]
    return Runner([*_read_only_steps(parts, card, SwitchCache(parts.client), threading.Event()), *simulated_steps])


def _read_only_steps(
    parts: Dependencies, card: ConfirmCard, switch_cache: SwitchCache, stopping: threading.Event
) -> list[Step]:
    """The steps that change nothing outside; the simulator has them too."""
    return [
        KillSwitch(switch_cache, parts.routes, parts.systems, parts.retry_policy, stopping),
        CheckParams(),
        GateCommon(),
        QueryOrder(parts.directories),
        CheckOrder(),
        RouteModeScenario(),
        CollectImage(parts.ledger),
        ScenarioValidate(),
        LimitCheck(parts.client, parts.worker_pool, parts.retry_policy, card.asks_customer),
        CriticCheck(parts.critic, parts.worker_pool, parts.model_branches),
        TransferToHuman(card),
    ]
