"""The rules critic: deterministic, no outside, well under a millisecond for what customers write.

In order of precedence: the amount, words aimed at a machine, hidden text, the scenario, a template over accounts; then what is
only a doubt: a text that is too long, has markup, is in another script or language, or speaks of how it is decided. Texts are bounded before they are
looked at, so no text makes it slow. What it can and cannot see stands in `policies/critic.yaml`.
"""

from __future__ import annotations

from sentinel.platform.resources import policies_dir
from worker.critic.amounts import amount_detail
from worker.critic.bounds import Bounds, load_bounds
from worker.critic.case import CriticCase, CriticCode, Opinion
from worker.critic.coverage import uncovered_because
from worker.critic.decision_words import speaks_of_deciding
from worker.critic.markup import has_markup
from worker.critic.readings import MAX_LOOKED_AT, plain
from worker.critic.scenarios import scenario_detail
from worker.suspicion import SAME_TEXT_ACCOUNTS, Suspicion, suspicious_because

_TEXT_CODES = {
    Suspicion.WORDS: (CriticCode.INSTRUCTIONS, "words_aimed_at_a_machine"),
    Suspicion.HIDDEN: (CriticCode.ENCODED_TEXT, "hidden_words"),
    Suspicion.INVISIBLE: (CriticCode.ENCODED_TEXT, "invisible_characters"),
    Suspicion.MIXED: (CriticCode.ENCODED_TEXT, "look_alike_letters"),
    Suspicion.ENCODED: (CriticCode.ENCODED_TEXT, "encoded_passage"),
    Suspicion.TOO_LONG: (CriticCode.LONG_TEXT, "not_looked_at"),
}

SPEAKS_OF_DECIDING = "speaks_of_deciding"
"""Detail of `critic_instructions` where two weak signs meet: enough for a person to look, not enough to call the row suspicious."""


class RulesCritic:
    """Immutable; safe to share between threads."""

    def __init__(self, bounds: Bounds | None = None) -> None:
        """Without `bounds`: the shipped ones."""
        self._bounds = bounds or load_bounds(policies_dir())

    def judge(self, case: CriticCase) -> Opinion:
        """The first rule that speaks against the case, else approved."""
        if detail := amount_detail(case):
            return Opinion(CriticCode.AMOUNT, "rules", detail)
        for text in case.texts.values():
            if why := suspicious_because(text):
                return Opinion(_TEXT_CODES[why][0], "rules", _TEXT_CODES[why][1])
        if detail := scenario_detail(case.scenario, plain((case.reason or "")[:MAX_LOOKED_AT])):
            return Opinion(CriticCode.SCENARIO, "rules", detail)
        if case.same_text_accounts >= SAME_TEXT_ACCOUNTS:
            return Opinion(CriticCode.REPEATED_TEXT, "rules")
        for place, text in case.texts.items():
            if doubt := self._doubt(place, text):
                return doubt
        return Opinion(CriticCode.OK, "rules")

    def _doubt(self, place: str, text: str) -> Opinion | None:
        """Why a person should read this text, though nothing in it is suspicious."""
        if len(text) > self._bounds.longest[place]:
            return Opinion(CriticCode.LONG_TEXT, "rules", f"{place}_too_long")
        if has_markup(text):
            return Opinion(CriticCode.MARKUP, "rules", f"markup_in_{place}")
        if why := uncovered_because(text, self._bounds.languages):
            return Opinion(CriticCode.LANGUAGE, "rules", why)
        if speaks_of_deciding(plain(text)):
            return Opinion(CriticCode.INSTRUCTIONS, "rules", SPEAKS_OF_DECIDING)
        return None
