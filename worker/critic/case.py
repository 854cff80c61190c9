"""The critic's input (one refund request) and output (an opinion with a code from a closed list)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from sentinel.core.money import Money

MAX_REASON = 300
"""Characters of a model's free text that are kept, for the trail only."""

Layer = Literal["rules", "model"]


class CriticCode(StrEnum):
    """Every answer of a critic; all but OK are escalation reasons."""

    OK = "critic_ok"
    AMOUNT = "critic_amount"
    SCENARIO = "critic_scenario"
    INSTRUCTIONS = "critic_instructions"
    ENCODED_TEXT = "critic_encoded_text"
    REPEATED_TEXT = "critic_repeated_text"
    LONG_TEXT = "critic_long_text"
    MARKUP = "critic_markup"
    LANGUAGE = "critic_language"
    REJECTED = "critic_rejected"
    TIMEOUT = "critic_timeout"
    ERROR = "critic_error"
    MALFORMED = "critic_malformed"


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticCase:
    """A request as a critic sees it. The texts are untrusted: data, whatever they say.

    `requested` is asked for; `paid` the whole order, `item_paid` the item in question, `shipping_fee` what was charged for
    shipping; None where nobody knows. `same_text_accounts` counts other accounts with the very same words.
    """

    channel: str
    scenario: str
    requested: Money
    mode: str | None = None
    paid: Money | None = None
    item_paid: Money | None = None
    shipping_fee: Money | None = None
    reason: str | None = None
    order_note: str | None = None
    image_text: str | None = None
    same_text_accounts: int = 0

    @property
    def texts(self) -> dict[str, str]:
        """All untrusted texts by field, without the empty ones."""
        texts = {"reason": self.reason, "order_note": self.order_note, "image_text": self.image_text}
        return {place: text for place, text in texts.items() if text}


@dataclass(frozen=True, slots=True)
class Opinion:
    """A critic's answer: `approved` exactly when the code is OK.

    `detail_code` says more, from lists of ours (snake_case, "" for none). `reason` are a model's own words, at most 300
    characters: for the trail only, in no log (it is left out of the repr) and on no way that decides.
    """

    reason_code: CriticCode
    layer: Layer
    detail_code: str = ""
    reason: str = field(default="", repr=False)

    @property
    def approved(self) -> bool:
        """Whether the row may go on to be asked about."""
        return self.reason_code is CriticCode.OK
