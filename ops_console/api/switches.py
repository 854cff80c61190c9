"""The switches' API: their state, why one can or cannot be turned on, and turning them on and off."""

from __future__ import annotations

from typing import Any

from flask import Blueprint, Response

from ops_console.api.control_schemas import SwitchChangeSchema, SwitchListSchema
from ops_console.api.rendering import OPERATOR, READING, WRITING, json_response, present
from ops_console.api.request_schemas import SwitchOffSchema, SwitchOnSchema
from ops_console.context import ConsoleContext
from ops_console.identity import actor, must_have_proved
from sentinel.authority.gate_reports import REFUSALS, GateState
from sentinel.authority.switches import SwitchChange, SwitchView, list_switches, turn_switch_off, turn_switch_on
from sentinel.platform.http.bodies import json_body, load, without_nulls
from sentinel.platform.http.openapi import documented

_ON, _OFF = SwitchOnSchema(), SwitchOffSchema()


def gate_view(gate: str, state: GateState) -> dict[str, Any]:
    """A launch gate as operators see it: open or why not, and the figures of the newest report, if there is one."""
    return present({
        "scenario": gate, "open": not state.refusal, "refusal": state.refusal or None, "why": REFUSALS.get(state.refusal),
        "digest_in_force": state.digest_in_force, "report_id": state.report_id, "passed": state.passed,
        "policy_digest": state.policy_digest, "cases": state.cases, "correct": state.correct,
        "lower_bound_ppm": state.lower_bound_ppm, "wrong_executions": state.wrong_executions,
        "not_covered": state.not_covered, "created_at": state.created_at, "age_seconds": state.age_seconds,
        "recorded_by": state.recorded_by,
    })  # fmt: skip


def switch_view(view: SwitchView) -> dict[str, Any]:
    """A switch as operators see it; `gate` is left out if the switch needs none."""
    return present({
        "name": view.name, "on": view.is_on, "canary_percent": view.canary_percent, "about": view.about,
        "policy": view.policy, "changed_at": view.changed_at, "changed_by": view.changed_by, "reason": view.reason,
        "first_canary": view.first_canary,
        "gate": gate_view(view.gate, view.gate_state) if view.gate and view.gate_state else None,
    })  # fmt: skip


def routes(blueprint: Blueprint, context: ConsoleContext) -> None:
    """Add the switch routes."""

    @blueprint.get("/switches")
    @documented("Switches, and whether each can be turned on",
                responses={200: ("Every switch; `fault` where the file of switches cannot be used.", SwitchListSchema)},
                problems=READING, security=OPERATOR)  # fmt: skip
    def show_switches() -> Response:
        declared = context.switches.declared
        rows = list_switches(context.pool, actor().tenant_id, declared)
        return json_response(present({"switches": [switch_view(row) for row in rows], "fault": declared.fault}))

    @blueprint.post("/switches/<name>/on")
    @documented("Turn a switch on, or move its canary", request=_ON, responses={200: ("It is on.", SwitchChangeSchema)},
                problems=WRITING, security=OPERATOR)  # fmt: skip
    def switch_on(name: str) -> Response:
        person = actor()
        person.must_be("admin")
        must_have_proved()
        given = load(_ON, without_nulls(json_body()))
        return _flipped(turn_switch_on(
            context.pool, person, context.switches.declared, name, canary_percent=given["canary_percent"], reason=given["reason"]
        ))  # fmt: skip

    @blueprint.post("/switches/<name>/off")
    @documented("Turn a switch off", request=_OFF, responses={200: ("It is off.", SwitchChangeSchema)}, problems=WRITING,
                security=OPERATOR)  # fmt: skip
    def switch_off(name: str) -> Response:
        person = actor()
        person.must_be("approver")
        given = load(_OFF, without_nulls(json_body()))
        return _flipped(turn_switch_off(context.pool, person, context.switches.declared, name, reason=given["reason"]))


def _flipped(done: SwitchChange) -> Response:
    return json_response({
        "name": done.name, "on": done.is_on, "canary_percent": done.canary_percent, "already": done.already
    })  # fmt: skip
