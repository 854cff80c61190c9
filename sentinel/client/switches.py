"""Parses the switches response: switches, halts and policies in force. A partial body is rejected."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sentinel.client.fields import flag, malformed, mapping, text

_SCOPES = ("global", "tenant", "agent", "action", "scenario", "agent_action")
_LEVELS = ("pause", "kill")


@dataclass(frozen=True, slots=True)
class SwitchState:
    """How a switch stands; while on, for `canary_percent` (0 to 100) of the accounts."""

    is_on: bool
    canary_percent: int
    simulated: tuple[str, ...] = ()
    """Outside systems that its launch gate saw as simulations only: with the real ones nothing is proven."""


@dataclass(frozen=True, slots=True)
class HaltInForce:
    """A halt in force: scope global, tenant, agent, action, scenario or agent_action ("AGENT ACTION"), "" or the target's name, level pause or kill."""

    scope: str
    target: str
    level: str


@dataclass(frozen=True, slots=True)
class Switches:
    """What is switched on and halted, and the digest of each policy in force. A switch that is not there is off."""

    switches: Mapping[str, SwitchState]
    halts: tuple[HaltInForce, ...]
    policies: Mapping[str, str]

    def is_on(self, name: str) -> bool:
        """Whether the switch is on at all; its canary is for the caller to ask."""
        found = self.switches.get(name)
        return found is not None and found.is_on


def switches_answer(body: Mapping[str, Any]) -> Switches:
    """A 200 body of `switches`. A halt of a scope that this program does not know is no answer: it might cover us."""
    named, policies, halts = (mapping(body, "switches"), mapping(body, "policies"), body.get("halts"))
    if not isinstance(halts, list) or not all(isinstance(halt, dict) for halt in halts):
        malformed("halts is not a list of objects")
    return Switches(
        switches={name: _switch(mapping(named, name)) for name in named},
        halts=tuple(_halt(halt) for halt in halts),
        policies={name: text(policies, name) for name in policies},
    )


def switched_off(body: Mapping[str, Any], name: str) -> bool:
    """A 200 body of `switches/off` about this switch; whether it was turned off only now."""
    if body.get("switch") != name or body.get("on") is not False:
        malformed("the switch is not said to be off")
    return not flag(body, "already")


def _switch(body: Mapping[str, Any]) -> SwitchState:
    percent = body.get("canary_percent")
    if type(percent) is not int or not 0 <= percent <= 100:
        malformed("canary_percent is not between 0 and 100")
    if "on" not in body:
        malformed("on is missing")
    simulated = body.get("simulated", [])
    if not isinstance(simulated, list) or not all(isinstance(name, str) for name in simulated):
        malformed("simulated is not a list of names")
    return SwitchState(flag(body, "on"), percent, tuple(simulated))


def _halt(body: Mapping[str, Any]) -> HaltInForce:
    scope, target, level = text(body, "scope"), body.get("target"), text(body, "level")
    if scope not in _SCOPES or level not in _LEVELS or not isinstance(target, str):
        malformed(f"a halt of scope {scope[:20]!r} and level {level[:20]!r}")
    return HaltInForce(scope, target, level)
