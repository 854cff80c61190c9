"""Scores an order: rules first, then the model where there is one. Never raises; every failure goes to a person.

Each rule looks at one thing, the strictest band counts, and every hit becomes a signal for people. The thresholds are
in `policies/order_signals.yaml`. The rules are pure functions of an order and its account's recent orders. A missing
fact is a signal of its own and never counts as zero.
"""

from __future__ import annotations

import logging
import re
import time
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from sentinel.core.money import Money
from sentinel.core.wording import counted
from worker.orders.model_score import ModelCode, ModelScore, fall_back
from worker.orders.order import MAX_SIGNAL_CHARS, RANK, Band, KnownAccount, Order, Score, Signal, mail_domain
from worker.orders.rule_settings import Amounts, CountRule, RuleSettings


class Code(StrEnum):
    """The signal codes of the rules."""

    COUNTRY_MISMATCH = "country_mismatch"
    COUNTRY_UNKNOWN = "country_unknown"
    VALUE_FOR_NEW_ACCOUNT = "value_for_new_account"
    VALUE_FOR_UNKNOWN_ACCOUNT = "value_for_unknown_account"
    RUSH_ON_RESELLABLE = "rush_on_resellable"
    DISPOSABLE_MAIL = "disposable_mail"
    MAIL_UNKNOWN = "mail_unknown"
    FAILED_PAYMENTS = "failed_payments"
    FAILED_PAYMENTS_UNKNOWN = "failed_payments_unknown"
    ORDERS_IN_A_DAY = "orders_in_a_day"
    AMOUNT_IN_A_DAY = "amount_in_a_day"
    ACCOUNT_UNKNOWN = "account_unknown"
    CURRENCY_NOT_COVERED = "currency_not_covered"
    NOTHING_TO_PAY = "nothing_to_pay"


@dataclass(frozen=True, slots=True)
class RuleHit:
    """One finding of a rule; with `band` low it is only a note for people."""

    code: Code
    band: Band
    detail: str


class RulesScore:
    """Scores by rules alone. Thread-safe."""

    def __init__(self, numbers: RuleSettings) -> None:
        self._numbers = numbers
        self._covered = frozenset.intersection(*map(frozenset, numbers.all_amounts()))
        self._resellable = _words(numbers.resellable_words)

    def score(self, order: Order, known: KnownAccount) -> Score:
        """Ask every rule; return the band and all signals, also those that only note that something is unknown."""
        began = time.perf_counter()
        found = [finding for rule in _RULES for finding in rule(self, order, known)]
        band = max((finding.band for finding in found), key=RANK.__getitem__, default=Band.LOW)
        if sum(RANK[finding.band] > 0 for finding in found) >= self._numbers.high_from_signals:
            band = Band.HIGH
        signals = tuple(Signal(finding.code, finding.detail[:MAX_SIGNAL_CHARS]) for finding in found)
        return Score(band, signals, "not_asked", int((time.perf_counter() - began) * 1000))

    def _currency(self, order: Order, known: KnownAccount) -> Iterator[RuleHit]:
        if order.amount.currency not in self._covered:
            yield RuleHit(
                Code.CURRENCY_NOT_COVERED, Band.MEDIUM, f"the rules have no amounts for {order.amount.currency}"
            )

    def _nothing_to_pay(self, order: Order, known: KnownAccount) -> Iterator[RuleHit]:
        # It may be a gift, a full discount or a manipulated price, and the other rules' amount thresholds do not apply
        # to zero.
        if order.amount.amount_minor == 0:
            yield RuleHit(Code.NOTHING_TO_PAY, Band.MEDIUM, f"the total is {order.amount}")

    def _countries(self, order: Order, known: KnownAccount) -> Iterator[RuleHit]:
        rule, billing, shipping = self._numbers.country, order.billing_country, order.shipping_country
        if billing is None or shipping is None:
            missing = "billing" if billing is None else "shipping"
            yield RuleHit(Code.COUNTRY_UNKNOWN, rule.unknown, f"the {missing} country is unknown")
        elif billing.casefold() != shipping.casefold():
            yield RuleHit(Code.COUNTRY_MISMATCH, rule.band, f"billed in {billing}, shipped to {shipping}")

    def _value_for_age(self, order: Order, known: KnownAccount) -> Iterator[RuleHit]:
        age, rule = order.account_age_days, self._numbers.value_for_age
        if age is None:
            if _reaches(order.amount, rule.unknown_from):
                detail = f"{order.amount} from an account of unknown age"
                yield RuleHit(Code.VALUE_FOR_UNKNOWN_ACCOUNT, Band.MEDIUM, detail)
            return
        reached = [s.band for s in rule.steps if age < s.younger_than_days and _reaches(order.amount, s.at_least)]
        if reached:
            detail = f"{order.amount} from an account of {counted(age, 'day')}"
            yield RuleHit(Code.VALUE_FOR_NEW_ACCOUNT, max(reached, key=RANK.__getitem__), detail)

    def _rush(self, order: Order, known: KnownAccount) -> Iterator[RuleHit]:
        rule, speed = self._numbers.rush, _plain(order.shipping_speed or "")
        if not _reaches(order.amount, rule.at_least) or not any(word in speed for word in rule.speeds):
            return
        titles = [item.title for item in order.items if item.title and self._resellable.search(_plain(item.title))]
        if titles:
            yield RuleHit(Code.RUSH_ON_RESELLABLE, rule.band, f"{order.shipping_speed} shipping of {', '.join(titles)}")

    def _mail(self, order: Order, known: KnownAccount) -> Iterator[RuleHit]:
        rule = self._numbers.mail
        domain = mail_domain(_folded(order.email or ""))
        if domain is None:
            yield RuleHit(Code.MAIL_UNKNOWN, rule.unknown, "there is no mail address")
        elif any(domain == known_one or domain.endswith("." + known_one) for known_one in self._numbers.mail_domains):
            yield RuleHit(Code.DISPOSABLE_MAIL, rule.band, f"the mail address is at {domain}")

    def _failed_payments(self, order: Order, known: KnownAccount) -> Iterator[RuleHit]:
        rule, failed = self._numbers.failed_payments, order.failed_payments
        if failed is None:
            yield RuleHit(Code.FAILED_PAYMENTS_UNKNOWN, rule.unknown, "whether payments failed is unknown")
        elif (band := _band_of(rule, failed)) is not Band.LOW:
            yield RuleHit(Code.FAILED_PAYMENTS, band, f"{counted(failed, 'payment')} failed before")

    def _velocity(self, order: Order, known: KnownAccount) -> Iterator[RuleHit]:
        rule = self._numbers.velocity
        if known.velocity_24h is None:
            yield RuleHit(Code.ACCOUNT_UNKNOWN, rule.unknown, "the earlier orders of this account are unknown")
            return
        orders = known.velocity_24h + 1
        if (band := _band_of(rule, orders)) is not Band.LOW:
            yield RuleHit(Code.ORDERS_IN_A_DAY, band, f"{counted(orders, 'order')} of this account in 24 hours")
        spent = known.amount_24h
        if spent is not None and known.velocity_24h > 0 and spent.currency == order.amount.currency:
            total = Money(spent.amount_minor + order.amount.amount_minor, spent.currency)
            if _reaches(total, self._numbers.velocity_amount):
                yield RuleHit(Code.AMOUNT_IN_A_DAY, Band.MEDIUM, f"{total} of this account in 24 hours")


_RULES: tuple[Callable[[RulesScore, Order, KnownAccount], Iterator[RuleHit]], ...] = (
    RulesScore._currency, RulesScore._nothing_to_pay, RulesScore._countries, RulesScore._value_for_age, RulesScore._rush, RulesScore._mail,
    RulesScore._failed_payments, RulesScore._velocity,
)  # fmt: skip


def _band_of(rule: CountRule, count: int) -> Band:
    return Band.HIGH if count >= rule.high_from else Band.MEDIUM if count >= rule.medium_from else Band.LOW


def _reaches(amount: Money, at_least: Amounts) -> bool:
    # A currency without a threshold never reaches it: the rule `_currency` reports that.
    least = at_least.get(amount.currency)
    return least is not None and amount.amount_minor >= least


def _folded(text: str) -> str:
    """The text with full-width letters, capitals and invisible characters folded away, so that it compares as a person reads it."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return "".join(c for c in folded if unicodedata.category(c) != "Cf")


def _plain(text: str) -> str:
    return _folded(text).replace("_", " ").replace("-", " ")


def _words(words: tuple[str, ...]) -> re.Pattern[str]:
    # Match whole words and their plurals: "watch" matches "watches", not "watchdog".
    return re.compile(r"(?<!\w)(?:" + "|".join(re.escape(_plain(word)) for word in words) + r")(?:e?s)?(?!\w)")


OUT_OF_TIME, SCORE_FAILED = "out_of_time", "score_failed"
FACTS_MISSING = "facts_missing"
"""The signal of an order that lacks facts which its source always sends: no rule could look at them."""
_log = logging.getLogger(__name__)


def raised_for_missing_facts(score: Score, missing: Sequence[str]) -> Score:
    """Raise the score to at least the medium band where facts are missing that its source always sends, so that a person looks."""
    if not missing:
        return score
    band = max(score.band, Band.MEDIUM, key=RANK.__getitem__)
    signal = Signal(FACTS_MISSING, f"not in the order, though its source always sends it: {', '.join(missing)}")
    return replace(score, band=band, signals=(signal, *score.signals))


class Scorer:
    """Scores orders. Thread-safe."""

    def __init__(
        self, rules: RulesScore, model: ModelScore | None = None, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._rules, self._model, self._now = rules, model, now

    @property
    def asks_nobody(self) -> bool:
        """Whether scoring makes no outside call."""
        return self._model is None

    def score(self, order: Order, known: KnownAccount, deadline: float, noticed: Sequence[Signal] = ()) -> Score:
        """Score an order until `deadline`, an instant of `time.monotonic`. Never raises.

        `noticed` are signals from before, such as the enricher's; they come first.
        """
        try:
            score = self._score(order, known, deadline)
        except Exception as error:
            # A rule that raises has no result, so a person looks. Log only the type: the error's text may quote the
            # order.
            _log.error("scoring an order failed: %s", type(error).__name__)
            score = Score(Band.MEDIUM, (Signal(SCORE_FAILED, "the order could not be scored"),))
        return replace(score, signals=(*noticed, *score.signals))

    def _score(self, order: Order, known: KnownAccount, deadline: float) -> Score:
        rules = self._rules.score(order, known)
        if not isinstance(rules.band, Band) or rules.band is Band.UNKNOWN:
            rules = replace(
                rules, band=Band.MEDIUM, signals=(*rules.signals, Signal(SCORE_FAILED, "the rules gave no valid band"))
            )
        if self._now() >= deadline:
            return fall_back(rules, OUT_OF_TIME, "no time was left to score it")
        # The model can only raise a band, and high is the highest: do not ask it.
        if self._model is None or RANK[rules.band] == RANK[Band.HIGH]:
            return rules
        judged = self._model.judge(order, rules, deadline)
        if not isinstance(judged.band, Band) or RANK[judged.band] < RANK[rules.band]:
            return fall_back(rules, ModelCode.MALFORMED, "the model's band was lower than that of the rules")
        return judged
