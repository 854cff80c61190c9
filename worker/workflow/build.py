"""The workflow put together: the graph's steps with everything they need, in one place."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from sentinel.client import Client
from worker.confirmations import Confirmations
from worker.crew import Crew
from worker.critic.critic import Critic
from worker.failpoints import Failpoints
from worker.images.recogniser import Recogniser
from worker.ledger import Ledger
from worker.next_steps import Patience
from worker.settlement.registry import Systems
from worker.workflow.context import Step
from worker.workflow.directories import OrderDirectory
from worker.workflow.graph import StepName
from worker.workflow.routes import Routes
from worker.workflow.runner import Runner
from worker.workflow.simulate import AskCheck, LookAtCard, Never
from worker.workflow.steps.ask_authority import AskAuthority
from worker.workflow.steps.check_params import CheckParams
from worker.workflow.steps.collect_image import CollectImage
from worker.workflow.steps.confirm import Confirm
from worker.workflow.steps.confirm_card import ConfirmCard
from worker.workflow.steps.critic_check import CriticCheck
from worker.workflow.steps.execute_by_system import ExecuteBySystem
from worker.workflow.steps.gate_common import GateCommon
from worker.workflow.steps.kill_switch import KillSwitch
from worker.workflow.steps.limit_check import LimitCheck
from worker.workflow.steps.query_order import QueryOrder
from worker.workflow.steps.recognise_image import RecogniseImage
from worker.workflow.steps.route_mode_scenario import RouteModeScenario
from worker.workflow.steps.scenario_validate import ScenarioValidate
from worker.workflow.steps.transfer_to_human import TransferToHuman
from worker.workflow.switchboard import Switchboard


@dataclass(frozen=True, slots=True)
class Parts:
    """What steps are made of."""

    ledger: Ledger
    client: Client
    crew: Crew
    patience: Patience
    routes: Routes
    systems: Systems
    critic: Critic
    recogniser: Recogniser
    confirmations: Confirmations | None
    directories: Mapping[str, OrderDirectory]
    model_branches: Collection[str]
    act_within_seconds: int = 150


def build_runner(parts: Parts, *, failpoints: Failpoints, stopping: threading.Event) -> Runner:
    """A runner with the real steps."""
    card = ConfirmCard(parts.confirmations, parts.systems)
    acting: list[Step] = [
        RecogniseImage(parts.ledger, parts.crew, parts.recogniser),
        card,
        AskAuthority(
            ledger=parts.ledger, client=parts.client, crew=parts.crew, patience=parts.patience, systems=parts.systems,
            failpoints=failpoints, stopping=stopping,
        ),
        ExecuteBySystem(
            ledger=parts.ledger, client=parts.client, crew=parts.crew, patience=parts.patience, systems=parts.systems,
            failpoints=failpoints, act_within_seconds=parts.act_within_seconds,
        ),
        Confirm(parts.ledger, parts.patience, failpoints),
    ]  # fmt: skip
    return Runner([*_looking(parts, card, stopping), *acting], failpoints)


def build_simulator(parts: Parts) -> Runner:
    """A runner that ends before anything is recorded, sent or moved."""
    card = ConfirmCard(parts.confirmations, parts.systems)
    looking: list[Step] = [
        RecogniseImage(parts.ledger, parts.crew, parts.recogniser, keeps=False),
        LookAtCard(card, parts.systems),
        AskCheck(parts.client, parts.crew, parts.systems),
        Never(StepName.EXECUTE_BY_SYSTEM),
        Never(StepName.CONFIRM),
    ]
    return Runner([*_looking(parts, card, threading.Event()), *looking])


def _looking(parts: Parts, card: ConfirmCard, stopping: threading.Event) -> list[Step]:
    """The steps that change nothing outside."""
    return [
        KillSwitch(Switchboard(parts.client), parts.routes, parts.systems, parts.patience, stopping),
        CheckParams(),
        GateCommon(),
        QueryOrder(parts.directories),
        RouteModeScenario(),
        CollectImage(parts.ledger),
        ScenarioValidate(),
        LimitCheck(parts.client, parts.crew, parts.patience, card.asks_customer),
        CriticCheck(parts.critic, parts.crew, parts.model_branches),
        TransferToHuman(),
    ]
