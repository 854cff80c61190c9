"""The frame of every operators' page: its headers, what it tells after an act, and how a form's act is carried out.

An act is a form's POST: it does one thing through one service, tells the result in the session and sends the browser back
(303), so that reloading repeats nothing. What is refused shows the same page again with the words that were typed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

from flask import Flask, Response, current_app, g, render_template, request, url_for

from ops_console.accounts.sessions import SignedIn, store_message, take_messages
from ops_console.context import ConsoleContext
from ops_console.identity import page_of
from ops_console.pages.step_up import needs_proof
from ops_console.pages.text import FILTERS, FUNCTIONS, named_amounts
from sentinel.authority.actor import has_role
from sentinel.authority.protected_changes import WaitsForAdministrator
from sentinel.core.errors import EngineUnavailable, InvalidInput, SentinelError, StillDeciding
from sentinel.platform.http.problems import (
    log_unavailable,
    outage_text_for_people,
    request_id,
    retry_after_seconds,
    status_of,
)

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; form-action 'self';"
    " base-uri 'none'; frame-ancestors 'none'"
)
# Our own forms must say where they come from (`identity.check_origin`); with no-referrer they say "null".
_HEADERS = {"Content-Security-Policy": CSP, "Cache-Control": "no-store", "Referrer-Policy": "same-origin"}
# What forms call their fields.
_LABELS = {
    "proof": "Your password or code", "digest": "What the page showed", "in_doubt_since": "What the page showed", "verdict": "Your decision", "id": "The list",
    "reason": "The reason", "reference": "The reference", "evidence": "The evidence", "executed": "Was it executed",
    "target": "The target", "scope": "The scope", "level": "The level", "email": "The e-mail address", "password": "The password",
    "code": "The code", "old": "The current password", "new": "The new password", "again": "The new password again",
    "label": "The label", "expires_days": "The number of days", "overlap_hours": "The number of hours", "agent_id": "The agent",
    "owner": "Key owner", "scopes": "The scopes", "role": "The role", "canary_percent": "The canary",
    "q": "The search", "lane": "The lane", "status": "The state", "kind": "The kind", "agent": "The agent",
    "operation": "The operation id", "since": "The beginning", "until": "The end", "cursor": "The cursor",
    "key_id": "The key", "token_id": "The token", "session_id": "The session", "name": "The name", "sort": "The sort order",
}  # fmt: skip
# How validators say it, and how a person would.
_RULES = {
    "Missing data for required field": "is missing",
    "Field may not be null": "is missing",
    "Not a valid integer": "must be a whole number",
    "Not a valid string": "must be a text",
    "Not a valid email address": "is no e-mail address",
    "Unknown field": "does not belong to this form",
}
_NUMBER = re.compile(r"[0-9]{1,9}", re.ASCII)
_SAID_OF_IT = re.compile(r"(is|are|was|were|must|may|can|cannot|has|have|had|does|differs|holds|names|needs)\b")
# (endpoint, label, least role): the pages in the order of the menu; a page not named here is reached from another.
# The role only spares a person a refusal: each page asks for itself.
MENU = (
    ("overview", "Overview", "viewer"), ("approvals", "Approvals", "viewer"), ("ledger", "Ledger", "viewer"),
    ("orders", "Orders", "viewer"), ("policies", "Policies", "viewer"), ("halts", "Halts", "viewer"),
    ("in_doubt", "In doubt", "viewer"), ("events", "Events", "viewer"), ("keys", "Keys", "admin"),
    ("webhooks", "Webhooks", "admin"), ("operators", "Operators", "admin"),
)  # fmt: skip
View = TypeVar("View", bound=Callable[..., Response])
Again = Callable[..., Response]
"""Shows a form again with why it was refused: `(told, **the address's parts)`."""


@dataclass(frozen=True, slots=True)
class FlashMessage:
    """What the next page tells. `kind` is done, note or warning."""

    text: str
    kind: str = "done"


@dataclass(frozen=True, slots=True)
class FormRefusal:
    """Why an act was not done: the sentence, and what is wrong by field name. `is_unsure`: it may have been done all the same."""

    detail: str
    fields: dict[str, str]
    status: int
    retry_after_seconds: int | None = None
    is_unsure: bool = False


def install(app: Flask) -> None:
    """Give templates what they write with."""
    app.jinja_env.filters.update(FILTERS)
    app.jinja_env.globals.update(FUNCTIONS, asset=asset, menu=_menu, may=may, needs_proof=needs_proof)
    app.jinja_env.globals.update(named_amounts=named_amounts)
    app.jinja_env.trim_blocks = app.jinja_env.lstrip_blocks = True


@cache
def _digests() -> dict[str, str]:
    """The digest of each static file by its name: what the address of its content says."""
    folder = Path(__file__).parent.parent / "static"
    files = [one for one in folder.rglob("*") if one.is_file()]
    return {one.relative_to(folder).as_posix(): hashlib.sha256(one.read_bytes()).hexdigest()[:16] for one in files}


def asset(name: str) -> str:
    """The address of a static file; it changes with the content, so that browsers may keep it for ever."""
    return url_for("static", filename=name, v=_digests()[name])


def names_content(view_args: Mapping[str, Any] | None, query: Mapping[str, str]) -> bool:
    """Whether a static file's address is one that `asset` makes: another digest is of a file that was or will be."""
    known = _digests().get((view_args or {}).get("filename", ""))
    return known is not None and query.get("v") == known


def may(role: str) -> bool:
    """Whether the signed-in person has at least this role."""
    return has_role(g.signed_in.role, role)


def _menu() -> list[tuple[str, str]]:
    known = current_app.view_functions
    return [(f"pages.{name}", label) for name, label, role in MENU if f"pages.{name}" in known and may(role)]


def page(context: ConsoleContext, template: str, *, title: str, status: int | None = None, **values: Any) -> Response:
    """A whole page; `template` is below templates/pages. Tells what the last act had to say.

    Without a `status` it is that of the first `FormRefusal` among the values, else 200.
    """
    refusal = next((value for value in values.values() if isinstance(value, FormRefusal)), None)
    # Where the database gave no answer it is not asked for more: what is to be told waits for the next page.
    tells = "signed_in" in g and g.get("by_cookie") and not (refusal and refusal.is_unsure)
    said = _messages(context) if tells else []
    html = render_template(f"pages/{template}", title=title, said=said, who=g.get("signed_in"), **values)
    status = status or (refusal.status if refusal else 200)
    return Response(html, status=status, content_type="text/html; charset=utf-8", headers=_HEADERS | _wait(refusal))


def _messages(context: ConsoleContext) -> list[dict[str, str]]:
    """What the last act had to say. Where it is not known whether it is forgotten it is told all the same: what this page has to tell
    is not lost for it, and twice is better than never.
    """
    who: SignedIn = g.signed_in
    try:
        return take_messages(context.pool, who)
    except EngineUnavailable as error:
        log_unavailable(error, request_id())
        return who.said or []


def _wait(refusal: FormRefusal | None) -> dict[str, str]:
    """When to come back, where something is asked for too often or the database gives no answer (`docs/CONTRACT.md` §1)."""
    seconds = refusal.retry_after_seconds if refusal else None
    return {"Retry-After": str(seconds)} if seconds else {}


def fragment(template: str, **values: Any) -> Response:
    """A part of a page that refreshes itself."""
    html = render_template(f"pages/{template}", who=g.get("signed_in"), **values)
    return Response(html, content_type="text/html; charset=utf-8", headers=_HEADERS)


def refreshes_itself(view: Callable[..., Response]) -> Callable[..., Response]:
    """Mark a view that an open page polls: such a request does not keep the session from going idle."""
    view.refreshes_itself = True  # type: ignore[attr-defined]
    return view


def flash_message(context: ConsoleContext, text: str, kind: str = "done") -> None:
    """Have the next page tell this. `kind` is done, note or warning."""
    store_message(context.pool, g.signed_in, {"kind": kind, "text": text})


def back_to(address: str) -> Response:
    """Send the browser to a page of ours by GET."""
    return Response(status=303, headers={"Location": address, "Cache-Control": "no-store"})


def attempt(
    context: ConsoleContext,
    do: Callable[[], str | FlashMessage],
    *,
    again: Callable[[FormRefusal], Response],
    then: str,
) -> Response:
    """Carry out a form's act. `do` returns what to tell; a refusal of ours shows the form `again`, nothing lost."""
    try:
        told = do()
    except WaitsForAdministrator as error:
        return waits(context, error)
    except SentinelError as error:
        return again(refused(error))
    told = told if isinstance(told, FlashMessage) else FlashMessage(told)
    flash_message(context, told.text, told.kind)
    return back_to(then)


def waits(context: ConsoleContext, error: WaitsForAdministrator) -> Response:
    """Lead to the approval that an act waits for."""
    flash_message(context, "Nothing is changed yet: this waits for a second administrator.", "note")
    return back_to(f"/ops/approvals/{error.approval_id}")


def refused(error: SentinelError) -> FormRefusal:
    """An error as a page shows it. What the database said is for the log."""
    if isinstance(error, EngineUnavailable):
        log_unavailable(error, request_id())
    detail, fields = in_words(error)
    is_unsure = isinstance(error, (EngineUnavailable, StillDeciding))
    return FormRefusal(detail, fields, status_of(error)[0], retry_after_seconds(error), is_unsure)


def not_possible(context: ConsoleContext, error: SentinelError, back: str = "") -> Response:
    """A page of its own for what was refused; `back` is where it was asked from."""
    told = refused(error)
    title = "No usable answer" if told.is_unsure else "That was not possible"
    return page(context, "error.html", title=title, told=told, back=back)


def shows(again: Again) -> Callable[[View], View]:
    """Name what shows an act's form again, for when the act itself cannot even be looked at (`form_rerendered`)."""

    def mark(view: View) -> View:
        view.form_rerendered = again  # type: ignore[attr-defined]
        return view

    return mark


def form_rerendered(context: ConsoleContext, error: SentinelError) -> Response:
    """The form as it was sent, with this session's token: the act's view is not asked. Else a page that leads back to it."""
    again = getattr(current_app.view_functions[request.endpoint or ""], "form_rerendered", None)
    try:
        if again is not None:
            return cast(Response, again(refused(error), **(request.view_args or {})))
    except SentinelError as other:
        return not_possible(context, other)
    return not_possible(context, error, page_of(request.path))


def typed(*, lists: tuple[str, ...] = ()) -> dict[str, Any]:
    """The form's fields, blanks and our own left out; `lists` may come several times. Raises `InvalidInput`."""
    given: dict[str, Any] = {}
    for name, values in request.form.lists():
        if name in ("csrf", "proof"):
            continue
        if name in lists:
            given[name] = [value for value in values if value]
        elif len(values) != 1:
            raise InvalidInput.of(name, "was given more than once")
        elif values[0].strip():
            given[name] = values[0].strip().replace("\r\n", "\n")
    return given


def whole_number(text: str) -> int | None:
    """A form's whole number of at most nine digits: more are a number of nothing here, and some thousands none that Python reads."""
    return int(text) if _NUMBER.fullmatch(text) else None


def in_words(error: SentinelError) -> tuple[str, dict[str, str]]:
    """An error as a page says it: the sentence, and the rule by field name. The API keeps its own names."""
    if isinstance(error, EngineUnavailable):
        return outage_text_for_people(request.method).detail, {}
    rules = {path: _RULES.get(rule, rule) for path, rule in error.errors.items()}
    fields = {path.rpartition(".")[2]: rule for path, rule in rules.items()}
    for path, rule in error.errors.items():
        # Only a sentence that was made of the field and its rule is made anew; others were written for people.
        if error.detail == f"{path}: {rule}":
            return _sentence(path.rpartition(".")[2], rules[path]), fields
    return error.detail, fields


def _sentence(field: str, rule: str) -> str:
    label = _LABELS.get(field) or f"“{field.replace('_', ' ')}”"
    return f"{label} {rule}" if _SAID_OF_IT.match(rule) else f"{label}: {rule}"
