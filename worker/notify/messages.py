"""The confirmation message in every supported language. A test checks that no translation is missing."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from sentinel.core.customer_text import language_of, moment_text, money_text, visible_text

CATALOGUES: Mapping[str, Mapping[str, str]] = {
    "en": {
        "subject": "Please confirm your refund request",
        "greeting": "Hello,",
        "ask": "please look at your request and say whether it is right:",
        "amount": "Amount: {amount}",
        "coupon": "Coupon worth: {amount}",
        "order": "Order: {order}",
        "link": "To confirm or decline, open this page:",
        "until": "It can be answered until {until}. Without an answer the request ends and nothing is paid.",
        "private": "The link is yours alone: whoever opens it can answer for you. Please do not pass it on.",
    },
    "de": {
        "subject": "Bitte bestätigen Sie Ihren Erstattungsantrag",
        "greeting": "Guten Tag,",
        "ask": "bitte sehen Sie sich Ihren Antrag an und sagen Sie uns, ob er stimmt:",
        "amount": "Betrag: {amount}",
        "coupon": "Gutschein über: {amount}",
        "order": "Bestellung: {order}",
        "link": "Zum Bestätigen oder Ablehnen öffnen Sie diese Seite:",
        "until": "Sie können bis {until} antworten. Ohne Antwort endet der Antrag, und es wird nichts ausgezahlt.",
        "private": "Der Link ist nur für Sie: Wer ihn öffnet, kann für Sie antworten. Bitte geben Sie ihn nicht weiter.",
    },
}


@dataclass(frozen=True, slots=True)
class Message:
    """One message to one customer. What only the customer may see stays out of its printed form."""

    confirmation_id: uuid.UUID
    language: str
    contact: str | None = field(repr=False)
    subject: str = field(repr=False)
    text: str = field(repr=False)
    link: str = field(repr=False)


def confirm_message(
    *, confirmation_id: uuid.UUID, language: str | None, contact: str | None, scenario: str, amount_minor: int,
    currency: str, order_ref: str | None, expires_at: datetime, link: str,
) -> Message:  # fmt: skip
    """The message of a card; the order's name is foreign text and written plainly."""
    spoken = language_of(language)
    words = CATALOGUES[spoken]
    amount = money_text(amount_minor, currency, spoken)
    facts = [words["coupon" if scenario == "compensation" else "amount"].format(amount=amount)]
    if order_ref:
        facts.append(words["order"].format(order=visible_text(order_ref)))
    until = words["until"].format(until=moment_text(expires_at, spoken))
    paragraphs = (
        words["greeting"],
        words["ask"],
        "\n".join(facts),
        f"{words['link']}\n{link}",
        until,
        words["private"],
    )
    return Message(confirmation_id, spoken, contact, words["subject"], "\n\n".join(paragraphs) + "\n", link)
