"""The rules critic: deterministic, no outside, well under a millisecond for what customers write.

In order of precedence: the amount, words aimed at a machine, hidden text, the scenario, a template over accounts. Texts are
bounded before they are looked at, so no text makes it slow.
"""

from __future__ import annotations

from worker.critic.amounts import amount_detail
from worker.critic.case import CriticCase, CriticCode, Opinion
from worker.critic.readings import MAX_LOOKED_AT, plain
from worker.critic.scenarios import scenario_detail
from worker.suspicion import SAME_TEXT_ACCOUNTS, Suspicion, suspicious_because

_TEXT_CODES = {
    Suspicion.WORDS: (CriticCode.INSTRUCTIONS, "words_aimed_at_a_machine"),
    Suspicion.HIDDEN: (CriticCode.ENCODED_TEXT, "hidden_words"),
    Suspicion.INVISIBLE: (CriticCode.ENCODED_TEXT, "invisible_characters"),
    Suspicion.MIXED: (CriticCode.ENCODED_TEXT, "look_alike_letters"),
    Suspicion.ENCODED: (CriticCode.ENCODED_TEXT, "encoded_passage"),
    Suspicion.TOO_LONG: (CriticCode.ENCODED_TEXT, "too_long"),
}


class RulesCritic:
    """Stateless; safe to share between threads."""

    def judge(self, case: CriticCase) -> Opinion:
        """The first rule that speaks against the case, else approved."""
        if detail := amount_detail(case):
            return Opinion(CriticCode.AMOUNT, "rules", detail)
        for text in case.texts:
            if why := suspicious_because(text):
                return Opinion(_TEXT_CODES[why][0], "rules", _TEXT_CODES[why][1])
        if detail := scenario_detail(case.scenario, plain((case.reason or "")[:MAX_LOOKED_AT])):
            return Opinion(CriticCode.SCENARIO, "rules", detail)
        if case.same_text_accounts >= SAME_TEXT_ACCOUNTS:
            return Opinion(CriticCode.REPEATED_TEXT, "rules")
        return Opinion(CriticCode.OK, "rules")
