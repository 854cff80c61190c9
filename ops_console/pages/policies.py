"""The pages of policies: what is in force in words, the usage of its limits, its cases, and the switches with their gates."""

from __future__ import annotations

from collections.abc import Callable

from flask import Blueprint, Response, request

from ops_console.api.request_schemas import SwitchOffSchema, SwitchOnSchema
from ops_console.context import ConsoleContext
from ops_console.identity import actor
from ops_console.pages import shell
from ops_console.pages.step_up import prove
from ops_console.pages.text import cap_in_words
from ops_console.remembered import Remembered
from sentinel.authority.gate_reports import REFUSALS, list_reports
from sentinel.authority.policies import OPERATIONS_LOOKED_AT, LimitUsageRow
from sentinel.authority.policy_views import (
    MOST_PER_LIMIT,
    PolicyFolder,
    PolicyView,
    find_policy,
    limit_usage_by_window,
    list_policies,
)
from sentinel.authority.reasons import reason_text
from sentinel.authority.switches import SwitchView, list_switches, turn_switch_off, turn_switch_on
from sentinel.core.errors import Conflict, InvalidInput, NotFound
from sentinel.platform.http.bodies import load

_ON, _OFF = SwitchOnSchema(), SwitchOffSchema()
ADDRESS = "/ops/policies"
_USAGE_SECONDS = 3.0
"""How long the usage of limits is cached, so that many viewers cost as little as one."""


def routes(pages: Blueprint, context: ConsoleContext) -> None:
    """Add the pages of policies and switches, and the forms that turn a switch on and off."""
    folder, usage = PolicyFolder(context.settings.policies_dir), Remembered(_USAGE_SECONDS)

    def limit_usage(views: list[PolicyView], most: int) -> dict[str, list[LimitUsageRow]]:
        tenant = actor().tenant_id
        key = (tenant, most, tuple(view.digest for view in views))
        return usage.get(key, lambda: limit_usage_by_window(context.pool, tenant, views, most=most))

    @pages.get("/policies")
    def policies() -> Response:
        views = list_policies(context.pool)
        return shell.page(
            context, "policies.html", title="Policies", views=views, policy_files=folder.policy_files(), highest_usage=limit_usage(views, 1),
            run=folder.last_run(), declared_switches=context.switches.declared, refusals=REFUSALS,
            switches=list_switches(context.pool, actor().tenant_id, context.switches.declared),
        )  # fmt: skip

    @pages.get("/policies/<policy_id>")
    def policies_one(policy_id: str) -> Response:
        view = find_policy(context.pool, policy_id)
        switches = list_switches(context.pool, actor().tenant_id, context.switches.declared)
        return shell.page(
            context, "policy.html", title=str(view.description["label"]), view=view, policy_files=folder.policy_files(),
            full=limit_usage([view], MOST_PER_LIMIT), most=MOST_PER_LIMIT, looked=OPERATIONS_LOOKED_AT, run=folder.last_run(), reason_text=reason_text,
            cap_in_words=cap_in_words, switches=[one for one in switches if one.policy == policy_id],
        )  # fmt: skip

    @pages.get("/policies/<policy_id>/cases")
    def policies_cases(policy_id: str) -> Response:
        view, run = find_policy(context.pool, policy_id), folder.run()
        return shell.page(
            context, "policy_cases.html", title=f"Cases of {view.description['label']}", view=view, policy_files=folder.policy_files(), run=run,
            results=run.results.get(policy_id, ()), coverage=run.coverage.get(policy_id, {}),
        )  # fmt: skip

    @pages.get("/policies/switches/<name>")
    def policies_switch(name: str) -> Response:
        return _switch(context, name)

    @pages.post("/policies/switches/<name>/on")
    @shell.shows(lambda refusal, name: _switch(context, name, refusal))
    def policies_switch_on(name: str) -> Response:
        actor().must_be("admin")
        return _act(context, name, lambda: _turn_on(context, name))

    @pages.post("/policies/switches/<name>/off")
    @shell.shows(lambda refusal, name: _switch(context, name, refusal))
    def policies_switch_off(name: str) -> Response:
        actor().must_be("approver")
        return _act(context, name, lambda: _turn_off(context, name))


def _act(context: ConsoleContext, name: str, do: Callable[[], str]) -> Response:
    then = f"{ADDRESS}/switches/{name}"
    return shell.attempt(context, do, again=lambda refusal: _switch(context, name, refusal), then=then)


def _switch(context: ConsoleContext, name: str, refusal: shell.FormRefusal | None = None) -> Response:
    view = _known(context, name)
    return shell.page(
        context, "switch.html", title=f"Switch {name}", refusal=refusal,
        given=request.form, view=view, stamp=stamp_of(view), why=REFUSALS,
        reports=list_reports(context.pool, actor().tenant_id, name),
    )  # fmt: skip


def _known(context: ConsoleContext, name: str) -> SwitchView:
    for one in list_switches(context.pool, actor().tenant_id, context.switches.declared):
        if one.name == name:
            return one
    raise NotFound("there is no switch with that name")


def stamp_of(view: SwitchView) -> str:
    """Return the switch's state as text. The form posts it back, so that an outdated tab changes nothing that it does not show."""
    digest = view.gate_state.digest_in_force if view.gate_state else None
    return f"{view.is_on}|{view.canary_percent}|{view.changed_at}|{digest}"


def _turn_on(context: ConsoleContext, name: str) -> str:
    person = actor()
    prove(context)
    given = shell.typed()
    stamp = given.pop("stamp", None)
    given["canary_percent"] = _percent(given.get("canary_percent"))
    wanted = load(_ON, given)
    view = _known(context, name)
    # A double click asks for the state that is in force by now and is no conflict; an outdated page is.
    if stamp != stamp_of(view) and not (view.is_on and view.canary_percent == wanted["canary_percent"]):
        raise Conflict(
            "The switch or its policy has changed since this page was loaded. The page now shows the current state; nothing was changed."
        )
    done = turn_switch_on(
        context.pool,
        person,
        context.switches.declared,
        name,
        canary_percent=wanted["canary_percent"],
        reason=wanted["reason"],
        seen=view,
    )
    standing = f"on for {done.canary_percent} % of the accounts"
    return f"{name} was already {standing}; nothing changed." if done.already else f"{name} is {standing}."


def _turn_off(context: ConsoleContext, name: str) -> str:
    # Turning off is kept easy: it needs neither a step-up nor an up-to-date page.
    person = actor()
    given = shell.typed()
    given.pop("stamp", None)
    done = turn_switch_off(context.pool, person, context.switches.declared, name, reason=load(_OFF, given)["reason"])
    return f"{name} was already off; nothing changed." if done.already else f"{name} is off for everybody."


def _percent(text: object) -> int:
    if isinstance(text, str) and text.isascii() and text.isdigit() and len(text) <= 3 and int(text) <= 100:
        return int(text)
    raise InvalidInput.of("canary_percent", "must be a whole number from 0 to 100")
