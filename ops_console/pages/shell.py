"""The frame of every operators' page: its headers, the messages after an action, and how a form's action is carried
out.

A form's POST does one thing through one service, stores a message in the session and redirects the browser (303), so
that reloading repeats nothing. If it is refused, the same page is shown again with what was typed.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import urlencode

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
from sentinel.store.ids import new_id, uuid_or_none

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; form-action 'self';"
    " base-uri 'none'; frame-ancestors 'none'"
)
# Not no-referrer: with it browsers send "null" as the Origin of our own forms, which `identity.check_origin` would
# refuse.
_HEADERS = {"Content-Security-Policy": CSP, "Cache-Control": "no-store", "Referrer-Policy": "same-origin"}
# Field names → the labels that forms give them.
_LABELS = {
    "proof": "Your password or code", "digest": "What the page showed", "in_doubt_since": "What the page showed", "verdict": "Your decision", "id": "The selection",
    "reason": "The reason", "reference": "The reference", "evidence": "The evidence", "executed": "Was it executed",
    "target": "The target", "scope": "The scope", "level": "The level", "email": "The e-mail address", "password": "The password",
    "code": "The code", "old": "The current password", "new": "The new password", "again": "The new password again",
    "label": "The label", "expires_days": "The number of days", "overlap_hours": "The number of hours", "agent_id": "The agent",
    "owner": "Key owner", "scopes": "The scopes", "role": "The role", "canary_percent": "The canary",
    "q": "The search", "lane": "The lane", "status": "The state", "kind": "The kind", "agent": "The agent",
    "operation": "The operation id", "since": "The beginning", "until": "The end", "cursor": "The cursor",
    "key_id": "The key", "token_id": "The token", "session_id": "The session", "name": "The name", "sort": "The sort order",
}  # fmt: skip
# Messages of the validators → the same for people.
_RULES = {
    "Missing data for required field": "is missing",
    "Field may not be null": "is missing",
    "Not a valid integer": "must be a whole number",
    "Not a valid string": "must be text",
    "Not a valid email address": "is not an e-mail address",
    "Unknown field": "is not a field of this form",
}
_NUMBER = re.compile(r"[0-9]{1,9}", re.ASCII)
_SAID_OF_IT = re.compile(r"(is|are|was|were|must|may|can|cannot|has|have|had|does|differs|holds|names|needs)\b")
# (endpoint, label, least role): the pages in the order of the menu; any other page is reached by a link from one of
# these. The role only hides entries that would be refused; each page checks it again.
MENU = (
    ("overview", "Overview", "viewer"), ("approvals", "Approvals", "viewer"), ("ledger", "Ledger", "viewer"),
    ("orders", "Orders", "viewer"), ("policies", "Policies", "viewer"), ("halts", "Halts", "viewer"),
    ("in_doubt", "In doubt", "viewer"), ("events", "Events", "viewer"), ("keys", "Keys", "admin"),
    ("webhooks", "Webhooks", "admin"), ("operators", "Operators", "admin"),
)  # fmt: skip
View = TypeVar("View", bound=Callable[..., Response])
Again = Callable[..., Response]
"""A function that shows a form again with the refusal: `(refusal, **the address's variable parts)`."""


@dataclass(frozen=True, slots=True)
class FlashMessage:
    """A message for the next page. `kind` is done, note or warning."""

    text: str
    kind: str = "done"


@dataclass(frozen=True, slots=True)
class FormRefusal:
    """Why an action was refused: a sentence, what is wrong by field name, and the HTTP status.

    `retry_after_seconds` is for the header. `is_unsure`: the database did not answer, so the action may have been done.
    """

    detail: str
    fields: dict[str, str]
    status: int
    retry_after_seconds: int | None = None
    is_unsure: bool = False


def install(app: Flask) -> None:
    """Register the filters and functions that the templates use."""
    app.jinja_env.filters.update(FILTERS)
    app.jinja_env.globals.update(FUNCTIONS, asset=asset, menu=_menu, may=may, needs_proof=needs_proof)
    app.jinja_env.globals.update(named_amounts=named_amounts)
    app.jinja_env.trim_blocks = app.jinja_env.lstrip_blocks = True


@cache
def _digests() -> dict[str, str]:
    """The digest of each static file by its name, as `asset` puts it into the address."""
    folder = Path(__file__).parent.parent / "static"
    files = [one for one in folder.rglob("*") if one.is_file()]
    return {one.relative_to(folder).as_posix(): hashlib.sha256(one.read_bytes()).hexdigest()[:16] for one in files}


def asset(name: str) -> str:
    """Return the address of a static file; it changes with the content, so that browsers may cache the file for ever."""
    return url_for("static", filename=name, v=_digests()[name])


def names_content(view_args: Mapping[str, Any] | None, query: Mapping[str, str]) -> bool:
    """Whether a static file's address has the current digest, as `asset` makes it; another digest is of another release's file."""
    known = _digests().get((view_args or {}).get("filename", ""))
    return known is not None and query.get("v") == known


def may(role: str) -> bool:
    """Whether the signed-in person has at least this role."""
    return has_role(g.signed_in.role, role)


def _menu() -> list[tuple[str, str]]:
    known = current_app.view_functions
    return [(f"pages.{name}", label) for name, label, role in MENU if f"pages.{name}" in known and may(role)]


def page(context: ConsoleContext, template: str, *, title: str, status: int | None = None, **values: Any) -> Response:
    """Render a whole page, with the messages of the last action; `template` is below templates/pages.

    Without a `status`, it is that of the first `FormRefusal` among the values, else 200.
    """
    refusal = next((value for value in values.values() if isinstance(value, FormRefusal)), None)
    # If the database did not answer, it is not queried again here; the messages wait for the next page.
    tells = "signed_in" in g and g.get("by_cookie") and not (refusal and refusal.is_unsure)
    said = _messages(context) if tells else []
    html = render_template(f"pages/{template}", title=title, said=said, who=g.get("signed_in"), **values)
    status = status or (refusal.status if refusal else 200)
    return Response(html, status=status, content_type="text/html; charset=utf-8", headers=_HEADERS | _wait(refusal))


def _messages(context: ConsoleContext) -> list[dict[str, str]]:
    """Take the messages of the last action. If the database does not answer, they are shown anyway: showing a message
    twice is better than never, and this page must not be lost for it.
    """
    who: SignedIn = g.signed_in
    try:
        return take_messages(context.pool, who)
    except EngineUnavailable as error:
        log_unavailable(error, request_id())
        return who.said or []


def _wait(refusal: FormRefusal | None) -> dict[str, str]:
    """The Retry-After header, after too many requests or if the database did not answer (`docs/CONTRACT.md` §1)."""
    seconds = refusal.retry_after_seconds if refusal else None
    return {"Retry-After": str(seconds)} if seconds else {}


def fragment(template: str, **values: Any) -> Response:
    """Render a part of a page that refreshes itself, for the person named in the header; an open page of another person's
    does not take it (`live.js`).
    """
    html = render_template(f"pages/{template}", who=g.signed_in, **values)
    return Response(html, content_type="text/html; charset=utf-8", headers=_of_operator())


def unchanged() -> Response:
    """Answer a part of a page that refreshes itself and shows the present state already (204)."""
    return Response(status=204, headers=_of_operator())


def _of_operator() -> dict[str, str]:
    return _HEADERS | {"X-Operator-Id": str(g.signed_in.operator_id)}


def refreshes_itself(view: Callable[..., Response]) -> Callable[..., Response]:
    """Mark a view that an open page polls: such a request does not keep the session from going idle."""
    view.refreshes_itself = True  # type: ignore[attr-defined]
    return view


def flash_message(context: ConsoleContext, text: str, kind: str) -> None:
    """Store a message for the next page. `kind` is done, note or warning."""
    store_message(context.pool, g.signed_in, {"kind": kind, "text": text})


def address(base: str, asked: Mapping[str, str], **more: str) -> str:
    """Return a page's address with this filter and `more` parameters."""
    query = urlencode({**asked, **more})
    return f"{base}?{query}" if query else base


def kept_query(*names: str) -> str:
    """Return these fields of the query string as the end of an address, without blank ones; "" if none is left.

    With it, an action on one row of a list leads back to the list as the person had it.
    """
    return address("", {name: text for name in names if (text := request.args.get(name, "").strip())})


def back_to(address: str) -> Response:
    """Redirect the browser to a page of ours by GET (303)."""
    return Response(status=303, headers={"Location": address, "Cache-Control": "no-store"})


def attempt(
    context: ConsoleContext,
    do: Callable[[], str | FlashMessage],
    *,
    again: Callable[[FormRefusal], Response],
    then: str,
) -> Response:
    """Carry out a form's action: `do` returns the message, and the browser is redirected to `then`.

    A `SentinelError` shows the form `again` with what was typed; `WaitsForAdministrator` leads to the approval.
    """
    try:
        message = do()
    except WaitsForAdministrator as error:
        return waits(context, error)
    except SentinelError as error:
        return again(form_refusal(error))
    message = message if isinstance(message, FlashMessage) else FlashMessage(message)
    flash_message(context, message.text, message.kind)
    return back_to(then)


def waits(context: ConsoleContext, error: WaitsForAdministrator) -> Response:
    """Redirect to the approval that an action waits for."""
    flash_message(context, "Nothing is changed yet: this waits for a second administrator.", "note")
    return back_to(f"/ops/approvals/{error.approval_id}")


def form_refusal(error: SentinelError) -> FormRefusal:
    """Return an error as a page shows it. The database's own message goes only to the log."""
    if isinstance(error, EngineUnavailable):
        log_unavailable(error, request_id())
    detail, fields = in_words(error)
    is_unsure = isinstance(error, (EngineUnavailable, StillDeciding))
    return FormRefusal(detail, fields, status_of(error)[0], retry_after_seconds(error), is_unsure)


def not_possible(context: ConsoleContext, error: SentinelError, back: str = "") -> Response:
    """Render an error page of its own; `back` is the address it links back to."""
    refusal = form_refusal(error)
    title = "No usable answer" if refusal.is_unsure else "This was not possible"
    return page(context, "error.html", title=title, refusal=refusal, back=back)


def shows(again: Again) -> Callable[[View], View]:
    """Decorate a form's view with the function that shows its form again if the view cannot run at all (`form_rerendered`)."""

    def mark(view: View) -> View:
        view.form_rerendered = again  # type: ignore[attr-defined]
        return view

    return mark


def form_rerendered(context: ConsoleContext, error: SentinelError) -> Response:
    """Show a form again as it was sent, with this session's CSRF token, without running its view.

    If the view names no such function (`shows`), show an error page that links back to the form's page.
    """
    again = getattr(current_app.view_functions[request.endpoint or ""], "form_rerendered", None)
    try:
        if again is not None:
            return cast(Response, again(form_refusal(error), **(request.view_args or {})))
    except SentinelError as other:
        return not_possible(context, other)
    return not_possible(context, error, page_of(request.path))


def typed(*, lists: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the form's fields, stripped, without blank ones, `csrf` and `proof`. Only `lists` may occur more than
    once.

    Raises `InvalidInput`.
    """
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


def form_id(name: str, refusal: FormRefusal | None) -> uuid.UUID:
    """Return the id of a form that makes one thing however often it is sent: a new one, or that of the form that is
    shown again if what it asked for may have been done.
    """
    sent = uuid_or_none(request.form.get(name, "")) if refusal is not None and refusal.is_unsure else None
    return sent or new_id()


def whole_number(text: str) -> int | None:
    """Return a form's whole number of at most nine digits, else None. No number here needs more, and Python refuses thousands."""
    return int(text) if _NUMBER.fullmatch(text) else None


def in_words(error: SentinelError) -> tuple[str, dict[str, str]]:
    """Return an error in words for people: a sentence, and what is wrong by field name. The API keeps its own names."""
    if isinstance(error, EngineUnavailable):
        return outage_text_for_people(request.method).detail, {}
    rules = {path: _RULES.get(rule, rule) for path, rule in error.errors.items()}
    fields = {path.rpartition(".")[2]: rule for path, rule in rules.items()}
    for path, rule in error.errors.items():
        # Only a detail that was generated as "field: rule" is replaced; other details were written for people.
        if error.detail == f"{path}: {rule}":
            return _sentence(path.rpartition(".")[2], rules[path]), fields
    return error.detail, fields


def _sentence(field: str, rule: str) -> str:
    label = _LABELS.get(field) or f"“{field.replace('_', ' ')}”"
    return f"{label} {rule}" if _SAID_OF_IT.match(rule) else f"{label}: {rule}"
