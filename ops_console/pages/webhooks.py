"""The page of receivers of events: each one's progress and dead letters; disabling and enabling one, sending a dead letter again."""

from __future__ import annotations

from collections.abc import Callable

from flask import Blueprint, Response

from ops_console.api.rendering import path_id
from ops_console.context import ConsoleContext
from ops_console.identity import actor
from ops_console.pages import shell
from ops_console.pages.step_up import prove
from sentinel.authority.webhooks import disable_webhook, enable_webhook, list_dead_letters, list_endpoints, resend
from sentinel.core.errors import InvalidInput

ADDRESS = "/ops/webhooks"
MOST_SHOWN = 200
KINDS = {"webhook": "webhook", "decision_log": "decision log", "slack": "Slack notice", "mail": "mail notice"}
DISABLED = {
    "gone": "it answered that it is gone (410)", "administrator": "by an administrator", "setting": "no sender has its setting any longer",
}  # fmt: skip


def routes(pages: Blueprint, context: ConsoleContext) -> None:
    """Add the page and its forms; all of it is for administrators."""

    @pages.get("/webhooks")
    def webhooks() -> Response:
        return _page(context)

    @pages.post("/webhooks/<endpoint_id>/disable")
    @shell.shows(lambda refusal, endpoint_id: _page(context, refusal))
    def webhooks_disable(endpoint_id: str) -> Response:
        return _act(context, lambda: _disable(context, endpoint_id))

    @pages.post("/webhooks/<endpoint_id>/enable")
    @shell.shows(lambda refusal, endpoint_id: _page(context, refusal))
    def webhooks_enable(endpoint_id: str) -> Response:
        return _act(context, lambda: _enable(context, endpoint_id))

    @pages.post("/webhooks/<endpoint_id>/resend/<event_id>")
    @shell.shows(lambda refusal, endpoint_id, event_id: _page(context, refusal))
    def webhooks_resend(endpoint_id: str, event_id: str) -> Response:
        return _act(context, lambda: _resend(context, endpoint_id, event_id))


def _act(context: ConsoleContext, do: Callable[[], str]) -> Response:
    actor().must_be("admin")
    return shell.attempt(context, do, again=lambda refusal: _page(context, refusal), then=ADDRESS)


def _page(context: ConsoleContext, refusal: shell.FormRefusal | None = None) -> Response:
    # Checked here too: `shell.form_rerendered` shows a form again without calling its view.
    actor().must_be("admin")
    tenant_id = actor().tenant_id
    return shell.page(
        context, "webhooks.html", title="Webhooks", refusal=refusal, kinds=KINDS, disabled=DISABLED, most=MOST_SHOWN,
        endpoints=list_endpoints(context.pool, tenant_id), letters=list_dead_letters(context.pool, tenant_id, limit=MOST_SHOWN),
    )  # fmt: skip


def _proved(context: ConsoleContext) -> None:
    prove(context)
    if shell.typed():
        raise InvalidInput("this action takes no further fields")


def _disable(context: ConsoleContext, endpoint_id: str) -> str:
    _proved(context)
    disable_webhook(context.pool, actor(), path_id(endpoint_id, "webhook"))
    return "The webhook is disabled; its position in the feed is kept."


def _enable(context: ConsoleContext, endpoint_id: str) -> str:
    _proved(context)
    enable_webhook(context.pool, actor(), path_id(endpoint_id, "webhook"))
    return "The webhook is enabled and continues where it stopped."


def _resend(context: ConsoleContext, endpoint_id: str, event_id: str) -> str:
    _proved(context)
    resend(context.pool, actor(), path_id(endpoint_id, "webhook"), path_id(event_id, "event"))
    return "The event is sent once more. If the receiver does not accept it, it stays in the list."
