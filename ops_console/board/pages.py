"""The public board's pages: the live board, its widget for other sites, and the page of a proof. All work without scripts.

Each is rendered at most twice a second for all viewers together, and answered with 304 if the viewer's ETag still
matches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flask import Blueprint, Response, render_template, request

from ops_console.board.latest import Silence
from ops_console.board.reader import Board
from ops_console.context import ConsoleContext
from ops_console.remembered import Remembered
from sentinel.core.canonical import canonical_json
from sentinel.core.errors import NotFound
from sentinel.platform.http.openapi import documented

_CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; form-action 'none';"
    " base-uri 'none'; frame-ancestors "
)
ON_PAGE, IN_WIDGET = 50, 8
_RENDERED_SECONDS = 0.5
_HTML: dict[str, Any] = {"responses": {200: ("HTML.", {"type": "string"})}, "content_type": "text/html"}


def routes(blueprint: Blueprint, context: ConsoleContext) -> None:
    """Add the public pages."""
    board, base = context.board, context.settings.public_origin
    rendered = Remembered(_RENDERED_SECONDS)

    def shown(template: str, make: Callable[[], dict[str, Any]], **how: Any) -> Response:
        return cacheable(_html(rendered.get(template, lambda: _render(template, base=base, **make())), **how))

    def shown_of_board(template: str, make: Callable[[], dict[str, Any]], **how: Any) -> Response:
        return shown(template, lambda: _of_one_tenant(board, make), **how)

    @blueprint.get("/live")
    @documented("The board as a page", problems=(503,), **_HTML)
    def live() -> Response:
        return shown_of_board("live.html", lambda: {**_events(board, ON_PAGE), **_figures(board), "hidden": HIDDEN})

    @blueprint.get("/live/figures")
    @documented("The part of the board that refreshes itself", problems=(503,), **_HTML)
    def live_figures() -> Response:
        return shown_of_board("figures.html", lambda: _figures(board))

    @blueprint.get("/live/widget")
    @documented("The board as a widget for other sites", problems=(503,), **_HTML)
    def widget() -> Response:
        response = shown_of_board(
            "widget.html", lambda: {**_events(board, IN_WIDGET), **_figures(board)}, frame_ancestors="*"
        )
        response.headers["Cross-Origin-Resource-Policy"] = "cross-origin"
        return response

    @blueprint.get("/live/widget/figures")
    @documented("The part of the widget that refreshes itself", problems=(503,), **_HTML)
    def widget_figures() -> Response:
        return shown_of_board("widget_figures.html", lambda: _figures(board))

    @blueprint.get("/verify/")
    @documented("Check any proof pack in the browser", **_HTML)
    def verify_any() -> Response:
        return shown("verify.html", lambda: {"pack": None})

    @blueprint.get("/verify/<proof_id>")
    @documented(
        "A proof pack as a page, checked in the browser", problems=(503,), content_type="text/html",
        responses={**_HTML["responses"], 404: ("The page for pasting a pack: there is no proof with this id.", {"type": "string"})},
    )  # fmt: skip
    def verify(proof_id: str) -> Response:
        try:
            pack = board.proof(proof_id)
        except NotFound:
            return _html(_render("verify.html", base=base, pack=None, unknown=True), status=404)
        body = canonical_json({name: value for name, value in pack.items() if name != "hash"})
        page = _render("verify.html", base=base, pack=pack, body=body, meanings=MEANINGS)
        return cacheable(_html(page), seconds=60)


def cacheable(response: Response, seconds: int = 1) -> Response:
    """Let shared caches keep the response for `seconds` and revalidate it by its ETag."""
    response.headers["Cache-Control"] = f"public, max-age={seconds}"
    response.add_etag()
    response.make_conditional(request)
    return response


def _render(template: str, **values: Any) -> str:
    return render_template(f"board/{template}", words=OUTCOME_WORDS, **values)


def _html(page: str, status: int = 200, frame_ancestors: str = "'none'") -> Response:
    headers = {"Content-Security-Policy": _CSP + frame_ancestors}
    return Response(page, status=status, content_type="text/html; charset=utf-8", headers=headers)


def _of_one_tenant(board: Board, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the values of `make`, and the name of the tenant they belong to; repeat if the board's tenant changed meanwhile."""
    while True:
        tenant = board.tenant()
        values = make()
        if board.tenant() == tenant:
            return {"tenant": tenant[1], **values}


def _events(board: Board, most: int) -> dict[str, Any]:
    events = board.newest(most)
    return {
        "most": most,
        "events": [one.fields for one in events],
        "position": events[0].position if events else 0,
    }


def _figures(board: Board) -> dict[str, Any]:
    agents = [
        {"name": one.name, "silence": SILENCE_WORDS[one.silence], "policy": one.last.policy if one.last else "", "at": one.last.occurred_at if one.last else None,
         **board.publisher.agent_status(one.status, one.last.fields if one.last else None)}
        for one in board.agents()
    ]  # fmt: skip
    return {"figures": board.counts.current(), "agents": agents}


SILENCE_WORDS = {
    Silence.NEVER: "No decision yet.",
    Silence.NOT_LATELY: "No decision in the last day.",
    Silence.SOUGHT: "None found so far, still searching …",
}

OUTCOME_WORDS = {"ALLOW": "Allowed", "APPROVAL_REQUIRED": "A person decides", "DENY": "Denied"}

HIDDEN = (
    ("Who the customer is", "Names, mail and postal addresses, phone numbers, card and account numbers: they are not needed to judge a decision."),
    ("Orders and free text", "Raw orders, notes, reasons in free text and prompts: text that a person typed may name a person."),
    ("Internal names", "Refunds, ledger entries and agents are shown under public names, which are generated here and never change: a name given by an agent may name a person."),
    ("The facts behind a rule", "A proof contains a salted commitment to them: it fixes the facts without revealing them, and no account or amount can be guessed from it."),
    ("Internal ids and credentials", "Tenant and policy ids, approval ids, permits and keys: they would help an attacker and are not needed to check a decision."),
)  # fmt: skip

MEANINGS = {
    "proof_id": "the id of this proof",
    "ledger_entry_id": "the public name of the refund's row in the ledger",
    "refund_id": "the public name of the refund",
    "agent_id": "the requesting agent: its name if its key is bound to it, else its public name",
    "action": "what the agent wanted to do; an action that no policy names has a public name",
    "amount": "how much money would move",
    "decision": "what the policy decided, before anything was done",
    "policy_label": "the policy that decided",
    "policy_version": "the policy's version",
    "policy_digest": "the hash of the policy's exact text",
    "reason_code": "the reason of the decision",
    "operation_digest": "a salted commitment to the whole request",
    "facts_commitment": "a salted commitment to the facts that were evaluated, and to the rules and limits that applied",
    "decided_at": "when it was decided, by the database's clock",
    "latency_ms": "milliseconds until the decision was stored",
    "proof_status": "what kind of proof this is",
    "signature_status": "whether it is signed",
    "redaction_status": "what was left out",
    "hash": "SHA-256 over the canonical JSON of everything above",
}
