"""The route table: (channel, scenario, mode) → what a refund must pass and where it settles (`policies/routes.yaml`).

Everything named in the file is checked when it is read: an unknown channel, step, switch or system is refused with its
line and the nearest known name. What the table does not have has no route.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from sentinel.core.errors import InvalidInput
from sentinel.core.money import DIGITS, Money, parse_money
from sentinel.policy.errors import nearest
from sentinel.policy.source import Node, Scalar, Source, Table, read_source
from worker.refunds.rows import LedgerRow
from worker.refunds.workflow.graph import Escalation, StepName

FILE_NAME = "routes.yaml"
CHANNELS = ("retail", "private", "public")
SCENARIOS = ("standard", "fee", "price_diff", "compensation", "defect", "quality")
MODES = ("rebuy", "price_drop")
CRITICS = ("rules", "model")
IN_PARTS = ("retail",)
"""Channels whose orders may be refunded in parts: there the policy's duplicate rule counts against what was paid."""
MAY_BE_UNKNOWN = ("retail",)
"""Channels (at the counter) whose refunds need not name an order; a named order that is unknown still goes to a person."""
UNROUTED_ACTION = "refund.small.unrouted"
"""The action that is asked about for a row without a route; nothing settles it."""
GENERAL_ACTION = "refund.create"
"""The action of a row that leaves the exact action to its route."""

_STEPS: Mapping[str, tuple[StepName, ...]] = {
    "image": (StepName.COLLECT_IMAGE, StepName.RECOGNISE_IMAGE),
    "scenario_validate": (StepName.SCENARIO_VALIDATE,),
    "limit_check": (StepName.LIMIT_CHECK,),
}
_MUST = ("scenario_validate", "limit_check")
_KEYS = ("channel", "scenario", "mode", "action", "switch", "chain", "within_days", "no_proof_up_to", "confirm_card", "critic",
         "settles_to", "to_person")  # fmt: skip
_ACTION = re.compile(r"[a-z0-9_]+(\.[a-z0-9_]+)+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Route:
    """One branch. If `to_person` is set, it ends there, and nothing else counts. `settles_to` names a settlement
    system.

    `no_proof_up_to` is in minor units by currency: above it, or without a number, an image is needed.
    """

    channel: str
    scenario: str
    mode: str | None
    action: str
    switch: str
    wants_image: bool = False
    within_days: int | None = None
    no_proof_up_to: Mapping[str, int] | None = None
    confirm_card: bool = False
    critic: str = "rules"
    settles_to: str = ""
    to_person: Escalation | None = None
    name: str = field(init=False)
    """ "private/fee" or "public/price_diff/rebuy"."""

    def __post_init__(self) -> None:
        """Name the route after its cell: channel/scenario/mode."""
        cell = "/".join(part for part in (self.channel, self.scenario, self.mode) if part)
        object.__setattr__(self, "name", cell)

    def needs_proof(self, money: Money) -> bool:
        """Whether an image must prove this amount."""
        free = (self.no_proof_up_to or {}).get(money.currency)
        return self.wants_image and (free is None or money.amount_minor > free)


class Routes:
    """The table; immutable."""

    def __init__(self, routes: Collection[Route]) -> None:
        self.all = tuple(routes)
        self._by_cell = {(route.channel, route.scenario, route.mode): route for route in routes}

    @classmethod
    def load(cls, path: Path, *, switches: Collection[str] | None, systems: Collection[str]) -> Routes:
        """Read the file. Raises the first `PolicyError` in it. `switches` None: unknown, names are not checked."""
        source, root = read_source(path, regular=True)
        table = source.fields(root, "the file", known=("routes",), required=("routes",))
        found: dict[tuple[str, str, str | None], Route] = {}
        for node in source.listing(table.entries["routes"], "routes"):
            route = _route(source, node, switches, systems)
            cell = (route.channel, route.scenario, route.mode)
            if cell in found:
                raise source.error(node.place, f"there are two routes for {route.name}")
            found[cell] = route
        return cls(found.values())

    def find(self, channel: str, scenario: str, mode: str | None) -> Route | None:
        """Return the route of exactly this cell, or None. An unknown mode is another cell, so it has no route."""
        return self._by_cell.get((channel, scenario, mode))

    def as_asked(self, row: LedgerRow) -> LedgerRow:
        """Return the row with the action that the authority is asked about; every question and report must use it.

        It is the action fixed with the row's question, whatever the table says now; before that, `action_of` the row.
        """
        fixed = row.asked
        if fixed is None or fixed.action is None:
            action = self.action_of(row.action, row.channel, row.scenario, row.mode)
        else:
            action = fixed.action
        return row if action == row.action else replace(row, action=action)

    def action_of(self, action: str, channel: str, scenario: str, mode: str | None) -> str:
        """Return the action to ask about: the route's, or the row's own, which `check_params` compares with it.

        A row without a route gets `UNROUTED_ACTION`, a question for a person.
        """
        if action != GENERAL_ACTION:
            return action
        route = self.find(channel, scenario, mode)
        return UNROUTED_ACTION if route is None else route.action


def _route(source: Source, node: Node, switches: Collection[str] | None, systems: Collection[str]) -> Route:
    table = source.fields(node, "a route", known=_KEYS, required=("channel", "scenario", "action", "switch"))
    at = table.entries
    channel = source.one_of(at["channel"], "channel", CHANNELS)
    scenario = source.one_of(at["scenario"], "scenario", SCENARIOS)
    mode = source.one_of(at["mode"], "mode", MODES) if "mode" in at else None
    action = source.text(at["action"], "action", form=_ACTION, means="an action")
    switch = (
        source.text(at["switch"], "switch") if switches is None else source.one_of(at["switch"], "switch", switches)
    )
    if switches is not None:
        _check_master(source, at["switch"], switch, switches)
    if "to_person" in at:
        _only(source, table, ("channel", "scenario", "mode", "action", "switch", "to_person"))
        reason = Escalation(source.one_of(at["to_person"], "to_person", tuple(Escalation)))
        return Route(channel, scenario, mode, action, switch, to_person=reason)
    for key in ("chain", "critic", "settles_to"):
        if key not in at:
            raise source.error(table.place, f'a route: "{key}" is missing')
    chain = [source.one_of(step, "a step of the chain", tuple(_STEPS)) for step in source.listing(at["chain"], "chain")]
    if chain != [step for step in _STEPS if step in chain] or not set(_MUST) <= set(chain):
        raise source.error(
            at["chain"].place, f"chain must be, in this order: {', '.join(_STEPS)}; only image may be left out"
        )
    if "no_proof_up_to" in at and "image" not in chain:
        raise source.error(
            at["no_proof_up_to"].place, "no_proof_up_to: this chain has no image, so no amount needs a proof"
        )
    return Route(
        channel, scenario, mode, action, switch, wants_image="image" in chain,
        within_days=source.integer(at["within_days"], "within_days", least=1, most=365) if "within_days" in at else None,
        no_proof_up_to=_amounts(source, at["no_proof_up_to"]) if "no_proof_up_to" in at else None,
        confirm_card=_flag(source, at["confirm_card"]) if "confirm_card" in at else False,
        critic=source.one_of(at["critic"], "critic", CRITICS),
        settles_to=source.one_of(at["settles_to"], "settles_to", systems),
    )  # fmt: skip


def _check_master(source: Source, node: Node, switch: str, switches: Collection[str]) -> None:
    """Raise `PolicyError` if the master of the switch's family is not declared: the whole family would be off for ever."""
    master = master_of(switch)
    if master is not None and master not in switches:
        message = f'switch: "{switch}" is under "{master}", which is not declared'
        raise source.error(node.place, message, nearest(master, switches))


def master_of(switch: str) -> str | None:
    """Return the master switch that must be on as well; None for the shop's ordinary refunds (`retail.`)."""
    family = switch.partition(".")[0]
    return None if family == "retail" else f"{family}.enabled"


def _only(source: Source, table: Table, keys: Collection[str]) -> None:
    for key in table.entries:
        if key not in keys:
            raise source.error(table.keys[key], f'a route that goes to a person must not have "{key}"')


def _flag(source: Source, node: Node) -> bool:
    if not isinstance(node, Scalar) or node.text not in ("true", "false"):
        raise source.error(node.place, "confirm_card must be true or false")
    return node.text == "true"


def _amounts(source: Source, node: Node) -> Mapping[str, int]:
    table = source.table(node, "no_proof_up_to")
    for currency, place in table.keys.items():
        if currency not in DIGITS:
            raise source.error(place, f'no_proof_up_to: "{currency}" is not a currency', nearest(currency, DIGITS))
    return {currency: _minor(source, currency, value) for currency, value in table.entries.items()}


def _minor(source: Source, currency: str, node: Node) -> int:
    text = source.text(node, f"no_proof_up_to {currency}")
    if text.strip("0.") == "":
        return 0
    try:
        return parse_money(text, currency).amount_minor
    except InvalidInput as error:
        raise source.error(node.place, f"no_proof_up_to {currency}: {error.detail}") from error
