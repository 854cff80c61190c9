"""Runs both layers in order: the rules first, the model only where they approve and the branch is configured for it."""

from __future__ import annotations

from typing import Protocol

from worker.critic.bounds import load_bounds
from worker.critic.case import CriticCase, CriticCode, Layer, Opinion
from worker.critic.model import ModelCritic
from worker.critic.rules import RulesCritic
from worker.critic.settings import CriticSettings


class Judge(Protocol):
    """One layer. Never raises."""

    def judge(self, case: CriticCase) -> Opinion:
        """What it thinks of the case."""


class Critic:
    """The critic of a worker. `model` None: none is configured."""

    def __init__(self, rules: Judge | None = None, model: Judge | None = None) -> None:
        self._rules: Judge = rules or RulesCritic()
        self._model = model

    def judge(self, case: CriticCase, *, wants_model: bool) -> Opinion:
        """The strictest of what is asked: a model's yes changes nothing about a rule's no. Never raises."""
        opinion = _safely(self._rules, case, "rules")
        if not opinion.approved or not wants_model:
            return opinion
        if self._model is None:
            return Opinion(CriticCode.ERROR, "model", "not_configured")
        return _safely(self._model, case, "model")


def critic_from(settings: CriticSettings) -> Critic:
    """The critic of these settings; without an address there is no model layer. Raises `PolicyError`."""
    rules = RulesCritic(load_bounds(settings.policies_dir))
    if not settings.critic_url:
        return Critic(rules)
    model = ModelCritic(
        settings.critic_url, settings.critic_model, settings.critic_api_key, settings.critic_timeout_seconds
    )
    return Critic(rules, model)


def _safely(judge: Judge, case: CriticCase, layer: Layer) -> Opinion:
    try:
        return judge.judge(case)
    except Exception:  # a defect in a critic stops one row, not the worker
        return Opinion(CriticCode.ERROR, layer, "defect")
