"""`/confirm/<token>`: the page where a customer says whether a refund is right. No sign-in, no cookie, no script.

Anybody with the link may answer, once; the link names a card and cannot change what it asks. A GET never answers,
because mail programs open links too. The link is a secret, so none of our log lines contains the path.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

import structlog
from flask import Blueprint, Response, render_template, request
from werkzeug.routing import BaseConverter

from ops_console.confirm.confirmations import ANSWERS, CardRow, UnknownLink, answer_card, open_card
from ops_console.confirm.translations import CATALOGUES
from ops_console.context import ConsoleContext
from sentinel.core.confirm_link import ConfirmLinks
from sentinel.core.customer_text import language_of, moment_text, money_text, visible_text
from sentinel.core.errors import SentinelError
from sentinel.platform.http.openapi import documented

CSP = "default-src 'none'; style-src 'self'; img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
HEADERS = {
    "Content-Security-Policy": CSP,
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Robots-Tag": "noindex, nofollow, noarchive",
}
_MOST_BYTES = 1024
_COUPON_SCENARIOS = ("compensation",)
_AFTER_READING = {"confirmed": "already_confirmed", "declined": "already_declined"}
# Page → (HTTP status, style of the page's mark).
_PAGES = {
    "confirmed": (200, "good"), "already_confirmed": (200, "good"), "declined": (200, "ended"), "already_declined": (200, "ended"),
    "expired": (410, "ended"), "superseded": (410, "ended"), "unknown": (404, "ended"), "changed": (409, "again"),
    "unclear": (400, "again"), "unavailable": (503, "again"),
}  # fmt: skip
_RESPONSES: dict[int, tuple[str, dict[str, Any] | None]] = {
    200: ("A page in the customer's language.", {"type": "string"}),
    400: ("The form is not valid; nothing was recorded.", {"type": "string"}),
    404: ("An unknown, altered or foreign link.", {"type": "string"}),
    409: ("The form does not belong to the card as it is now; nothing was recorded.", {"type": "string"}),
    410: ("The time to answer has ended, or the request was changed or closed.", {"type": "string"}),
    503: ("Not possible now; giving the same answer again is harmless.", {"type": "string"}),
}

log = structlog.get_logger("console.confirm")


@dataclass(frozen=True, slots=True)
class _Speaker:
    """The texts of one language, filled with a card's values."""

    language: str
    card: CardRow | None

    @property
    def amount(self) -> str:
        return money_text(self.card.amount_minor, self.card.currency, self.language) if self.card else ""

    @property
    def kind(self) -> str:
        return "coupon" if self.card is not None and self.card.scenario in _COUPON_SCENARIOS else "refund"

    def say(self, key: str) -> str:
        until = moment_text(self.card.expires_at, self.language) if self.card else ""
        return CATALOGUES[self.language][key].format(amount=self.amount, until=until)

    def answered(self) -> str:
        if self.card is None or self.card.answered_at is None:
            return ""
        return CATALOGUES[self.language]["answered"].format(moment=moment_text(self.card.answered_at, self.language))


class Anything(BaseConverter):
    """The rest of the path, whatever characters it has, so that a mangled link gets our page for unknown links."""

    regex = "(?s:.+)"
    part_isolating = False


def blueprint(context: ConsoleContext) -> Blueprint:
    """The blueprint with the confirm page's routes."""
    pages = Blueprint("confirm", __name__)
    links = ConfirmLinks(context.settings.confirm_secrets)

    @pages.get("/confirm/<anything:token>")
    @documented(
        "A customer's confirm card",
        responses={k: _RESPONSES[k] for k in (200, 404, 410, 503)},
        content_type="text/html",
    )
    def show(token: str) -> Response:
        return _or_a_page(lambda: _card_page(open_card(context.ledger, links, token)))

    @pages.post("/confirm/<anything:token>")
    @documented(
        "A customer's answer, once", description="A form with `digest` as it was shown and `answer`, confirm or decline.",
        responses=_RESPONSES, content_type="text/html",
    )  # fmt: skip
    def answer(token: str) -> Response:
        return _or_a_page(lambda: _answer_page(context, links, token))

    @pages.get("/confirm/")
    @documented("A confirm link that was cut off", responses={404: _RESPONSES[404]}, content_type="text/html")
    def cut_off() -> Response:
        return _message("unknown")

    return pages


def _answer_page(context: ConsoleContext, links: ConfirmLinks, token: str) -> Response:
    if links.read(token) is None:
        return _message("unknown")
    form = _form() if _is_ours() else None
    if form is None:
        return _message("unclear")
    became, card = answer_card(context.ledger, links, token, shown_digest=form["digest"], answer=form["answer"])
    log.info("confirmation_answered", confirmation_id=str(card.confirmation_id), became=became)
    return _message(became, card)


def _or_a_page(make: Callable[[], Response]) -> Response:
    """Answer with a page whatever `make` raises, and log errors without the path, which contains the link."""
    try:
        return make()
    except UnknownLink:
        return _message("unknown")
    except SentinelError as error:
        log.error("confirmation_unavailable", cause=error.detail)
        return _message("unavailable")
    except Exception:
        log.exception("unexpected_error", path="/confirm")
        return _message("unavailable")


def _card_page(card: CardRow) -> Response:
    if card.status != "pending":
        return _message(_AFTER_READING.get(card.status, card.status), card)
    speaker = _Speaker(_language(card), card)
    texts = CATALOGUES[speaker.language]
    return _page(
        "confirm/card.html", 200, speaker, title=texts[f"card.title.{speaker.kind}"], digest=card.digest,
        reason=texts.get(f"scenario.{card.scenario}", ""), say=speaker.say,
    )  # fmt: skip


def _message(page: str, card: CardRow | None = None) -> Response:
    status, mood = _PAGES[page]
    speaker = _Speaker(_language(card), card)
    title = CATALOGUES[speaker.language][f"{page}.title"]
    response = _page(
        "confirm/message.html", status, speaker, title=title, page=page, mood=mood, answered=speaker.answered()
    )
    if status == 503:
        response.headers["Retry-After"] = "5"
    return response


def _page(template: str, status: int, speaker: _Speaker, **values: Any) -> Response:
    order = visible_text(speaker.card.order_ref) if speaker.card is not None and speaker.card.order_ref else ""
    html = render_template(
        template, language=speaker.language, texts=CATALOGUES[speaker.language], amount=speaker.amount, kind=speaker.kind,
        order=order, root="../" * (request.path.count("/") - 1), **values,
    )  # fmt: skip
    return Response(html, status=status, content_type="text/html; charset=utf-8", headers=HEADERS)


def _language(card: CardRow | None) -> str:
    """The card's language, else the browser's, else English."""
    return language_of(card.language if card is not None else None, *request.accept_languages.values())


def _is_ours() -> bool:
    """Whether the form came from our own page, by Sec-Fetch-Site. The page has no referrer, so Origin is "null" or missing."""
    return request.headers.get("Sec-Fetch-Site", "same-origin") in ("same-origin", "none")


def _form() -> dict[str, str] | None:
    """Return the form if it has exactly `digest` and `answer`, once each; None for anything else, such as an extra amount."""
    length = request.content_length
    if length is None or length > _MOST_BYTES or request.mimetype != "application/x-www-form-urlencoded":
        return None
    try:
        pairs = parse_qsl(
            request.get_data(cache=False).decode("ascii"), strict_parsing=True, max_num_fields=4, errors="strict"
        )
    except ValueError:
        return None
    form = dict(pairs)
    is_whole = len(pairs) == 2 and form.keys() == {"digest", "answer"}
    return form if is_whole and form["answer"] in ANSWERS and "\0" not in form["digest"] else None
