"""The critic's input (one refund request) and output (an opinion with a code from a closed list)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from sentinel.core.money import Money

MAX_REASON = 300
"""How many characters of a model's free text are kept, for the trail only."""

Layer = Literal["rules", "model"]


class CriticCode(StrEnum):
    """All answers of a critic; every code but OK is an escalation reason."""

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
    """A refund request as a critic sees it. The texts are untrusted: data, whatever they say.

    `requested` is the requested amount, `paid` the whole order's, `item_paid` the item's and `shipping_fee` the
    shipping's; None where unknown. `same_text_accounts` counts other accounts with exactly the same words.
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
        """The untrusted texts by field, without empty ones."""
        texts = {"reason": self.reason, "order_note": self.order_note, "image_text": self.image_text}
        return {place: text for place, text in texts.items() if text}


@dataclass(frozen=True, slots=True)
class Opinion:
    """A critic's answer: `approved` exactly when the code is OK.

    `detail_code` is a snake_case code from our own lists, or "". `reason` is a model's own text, at most 300
    characters: it is for the trail only, never logged (it is left out of the repr) and never used to decide.
    """

    reason_code: CriticCode
    layer: Layer
    detail_code: str = ""
    reason: str = field(default="", repr=False)

    @property
    def approved(self) -> bool:
        """Whether the row may go on to the next step."""
        return self.reason_code is CriticCode.OK
