"""Scores an order: rules first, then the model where there is one. Never raises; every failure goes to a person."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from worker.orders.model_score import ModelCode, ModelScore, fall_back
from worker.orders.order import Band, KnownAccount, Order, Score, Signal
from worker.orders.rules import RANK

OUT_OF_TIME, SCORE_FAILED = "out_of_time", "score_failed"
FACTS_MISSING = "facts_missing"
"""What its source always sends is not there: what was not read cannot have been looked at."""
_log = logging.getLogger(__name__)


class Rules(Protocol):
    """What scores first."""

    def score(self, order: Order, known: KnownAccount) -> Score:
        """The rules' band and signals."""


def without_facts(score: Score, missing: Sequence[str]) -> Score:
    """The score of an order that lacks what its source always sends: a person looks, whatever the rules did not notice."""
    if not missing:
        return score
    band = max(score.band, Band.MEDIUM, key=RANK.__getitem__)
    signal = Signal(FACTS_MISSING, f"not in the order, though its source always sends it: {', '.join(missing)}")
    return replace(score, band=band, signals=(signal, *score.signals))


class Scorer:
    """Scores orders. Thread-safe."""

    def __init__(
        self, rules: Rules, model: ModelScore | None = None, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._rules, self._model, self._now = rules, model, now

    @property
    def asks_nobody(self) -> bool:
        """Whether a score is made of what is at hand, in no time."""
        return self._model is None

    def score(self, order: Order, known: KnownAccount, deadline: float, noticed: Sequence[Signal] = ()) -> Score:
        """At most until `deadline`, an instant of `time.monotonic`. `noticed` before, as by the enricher, leads the signals."""
        try:
            score = self._score(order, known, deadline)
        except Exception as error:
            # A rule that raises has no result: a person looks. The error's text may quote the order.
            _log.error("scoring an order failed: %s", type(error).__name__)
            score = Score(Band.MEDIUM, (Signal(SCORE_FAILED, "the score could not be made"),))
        return replace(score, signals=(*noticed, *score.signals))

    def _score(self, order: Order, known: KnownAccount, deadline: float) -> Score:
        rules = self._rules.score(order, known)
        if not isinstance(rules.band, Band) or rules.band is Band.UNKNOWN:
            rules = replace(rules, band=Band.MEDIUM, signals=(*rules.signals, Signal(SCORE_FAILED, "no band of ours")))
        if self._now() >= deadline:
            return fall_back(rules, OUT_OF_TIME, "no time was left to score it")
        # A held order stays held, whatever a model says.
        if self._model is None or RANK[rules.band] == RANK[Band.HIGH]:
            return rules
        judged = self._model.judge(order, rules, deadline)
        if not isinstance(judged.band, Band) or RANK[judged.band] < RANK[rules.band]:
            return fall_back(rules, ModelCode.MALFORMED, "milder than the rules")
        return judged
