"""A customer looks at a confirm card and answers it. The link is all they have, so it is all that is asked for."""

from __future__ import annotations

from dataclasses import replace

from ops_console.confirm.confirmations import CardRow, read_card, record_answer
from sentinel.core.confirm_link import ConfirmLink, ConfirmLinks
from sentinel.core.errors import NotFound
from sentinel.store.database import Pool

ANSWERS = ("confirm", "decline")


class UnknownLink(NotFound):
    """Forged, cut off, another system's or its card is gone: never says which."""

    def __init__(self) -> None:
        super().__init__("this confirm link is not known")


def open_card(pool: Pool, links: ConfirmLinks, token: str) -> CardRow:
    """The card of a genuine link, whatever its status. Changes nothing.

    Raises `UnknownLink`, without asking the database when the signature is not ours, and `EngineUnavailable`.
    """
    link = _genuine(links, token)
    card = read_card(pool, link.tenant_id, link.confirmation_id)
    if card is None or card.digest != link.digest:
        raise UnknownLink
    # The link's own end is a second fence: a card that somebody prolonged does not make old links good again.
    over = card.status == "pending" and link.is_over(card.now)
    return replace(card, status="expired") if over else card


def answer_card(pool: Pool, links: ConfirmLinks, token: str, *, shown_digest: str, answer: str) -> tuple[str, CardRow]:
    """(what became of the answer, the card as it was before); `answer` is one of `ANSWERS`.

    The first is `confirmed`, `declined`, `already_confirmed`, `already_declined`, `expired`, `superseded` or `changed`.
    Raises `UnknownLink` and `EngineUnavailable`; after the latter the answer may or may not have been recorded, and
    giving it again is harmless.
    """
    card = open_card(pool, links, token)
    if card.status == "expired":
        return "expired", card
    tenant_id = _genuine(links, token).tenant_id
    became = record_answer(pool, tenant_id, card.confirmation_id, shown_digest=shown_digest, answer=answer)
    if became == "unknown":
        raise UnknownLink
    return became, card


def _genuine(links: ConfirmLinks, token: str) -> ConfirmLink:
    link = links.read(token)
    if link is None:
        raise UnknownLink
    return link
