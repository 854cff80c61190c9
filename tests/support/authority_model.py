"""The authority as a small pure model: what it must answer, said once more without SQL, locks or HTTP.

Time is a number of seconds that a caller moves. Amounts are minor units. The policy is the retail one: its numbers are
repeated here on purpose, so that a slip in either place shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

ALLOW_UP_TO, APPROVE_UP_TO, TWO_PEOPLE_FROM = 15_000, 100_000, 50_000
CAPS = {"account_day": 30_000, "account_24h": 30_000, "account_month": 100_000, "account_90d": 200_000}
PERMIT_SECONDS, APPROVAL_SECONDS, REPORT_SECONDS = 120, 1_800, 300


@dataclass
class Question:
    """An approval."""

    reasons: frozenset[str]
    ends: float
    people: int
    yes: set[str] = field(default_factory=set)
    granted: bool = False


@dataclass
class Budget:
    """What one permit holds: each limit it counts against, and whether above its cap because a person lifted it."""

    above: dict[str, bool]
    state: str = "held"


@dataclass
class Action:
    """One operation: what was asked and where it stands. `permit` counts up with every new permit; 0 is none."""

    tenant: int
    account: str
    refund: str
    minor: int
    status: str = ""
    decision: str = ""
    reason: str = ""
    holds_once: bool = False
    question: Question | None = None
    permit: int = 0
    permit_ends: float = 0
    permit_for_person: bool = False
    permits: int = 0
    budget: Budget | None = None
    start: str | None = None
    started_at: float = 0
    act_until: float = 0
    not_executed: bool = False
    outcome: str | None = None
    reported: str | None = None

    @property
    def seen(self) -> str:
        """Its status as callers see it."""
        if self.status in ("started", "in_doubt"):
            return "already_started" if self.outcome is None else "completed"
        return self.status


@dataclass
class Model:
    """Every operation of every tenant, and the halts in force."""

    now: float = 0
    actions: dict[str, Action] = field(default_factory=dict)
    halts: set[tuple[int, str]] = field(default_factory=set)

    # Asking

    def guard(self, key: str, tenant: int, account: str, refund: str, minor: int, escalation: str | None) -> Action:
        """The answer to a guard, new or again. What it shows now may differ from the record: see `stopped`."""
        if key not in self.actions:
            self.actions[key] = self._new(Action(tenant, account, refund, minor), escalation)
        else:
            self._again(self.actions[key], escalation)
        return self.actions[key]

    def stopped(self, action: Action) -> bool:
        """A halt turns a permission into a refusal for now, without changing what is recorded."""
        return action.status in ("allowed", "approved") and self.halted(action.tenant)

    def halted(self, tenant: int) -> bool:
        """Whether a halt covers this tenant's refunds."""
        return bool(self.halts & {(tenant, scope) for scope in ("tenant", "action", "agent")})

    def foresee(self, tenant: int, account: str, refund: str, minor: int) -> tuple[str, str]:
        """What `check` says: nothing is given back for it, nothing is kept."""
        decision, reason, _ = self._judge(Action(tenant, account, refund, minor), None, gives_back=False)
        return decision, reason

    def _judge(
        self, action: Action, escalation: str | None, *, gives_back: bool = True
    ) -> tuple[str, str, frozenset[str]]:
        decision, reasons = _policy(action.minor, escalation)
        halted = self.halted(action.tenant)
        holders = [one for one in self._others(action) if one.refund == action.refund and one.holds_once]
        if decision != "DENY" and gives_back:
            self._give_back_once(holders)  # halted or not
        if halted and (decision == "DENY" or not escalation):
            return "DENY", "halted", frozenset({"halted"})
        first = reasons[0]
        if decision != "DENY":
            if any(one.holds_once for one in holders):
                return "DENY", "duplicate_resource", frozenset({"duplicate_resource"})
            if any(self.above(action, self._of_account(action) if gives_back else []).values()):
                reasons = (*reasons, "limit_exceeded")
                first, decision = (first, decision) if decision != "ALLOW" else ("limit_exceeded", "APPROVAL_REQUIRED")
        if halted and decision != "DENY":
            return "APPROVAL_REQUIRED", "halted", frozenset({*reasons, "halted"})
        return decision, first, frozenset(reasons)

    def _new(self, action: Action, escalation: str | None) -> Action:
        action.decision, action.reason, reasons = self._judge(action, escalation)
        action.holds_once = action.decision != "DENY"
        action.status = {"ALLOW": "allowed", "DENY": "denied", "APPROVAL_REQUIRED": "pending"}[action.decision]
        if action.decision == "ALLOW":
            self._permit(action, dict.fromkeys(CAPS, False))
        if action.decision == "APPROVAL_REQUIRED":
            action.question = self._ask(action, reasons)
        return action

    def _again(self, action: Action, escalation: str | None) -> None:
        if action.status == "pending":
            self.expire_question(action)
        if action.status not in ("allowed", "approved") or self.halted(action.tenant):
            return
        decision, reasons = _policy(action.minor, escalation)
        lifted = action.question.reasons if action.question and action.question.granted else frozenset()
        # A permit is for one way of asking: got with a question to a person or without, it is no good for the other.
        other_way = not set(reasons) <= lifted if escalation else action.permit_for_person
        if action.permit and (action.permit_ends <= self.now or other_way):
            self._take_back(action)
        if not action.permit:
            self._renew(action, frozenset() if decision == "ALLOW" else frozenset(reasons), lifted)
            action.permit_for_person = escalation is not None

    def _renew(self, action: Action, reasons: frozenset[str], lifted: frozenset[str]) -> None:
        holders = [one for one in self._others(action) if one.refund == action.refund and one.holds_once]
        if not action.holds_once and holders:
            self._give_back_once(holders)
            if any(one.holds_once for one in holders):
                action.status, action.decision, action.reason = "denied", "DENY", "duplicate_resource"
                return
        above = self.above(action, self._of_account(action))
        unlifted = (reasons | ({"limit_exceeded"} if any(above.values()) else set())) - lifted
        action.holds_once = True
        if not unlifted:
            self._permit(action, above)
            return
        action.question = self._ask(action, unlifted | lifted)
        action.status, action.decision, action.reason = "pending", "APPROVAL_REQUIRED", min(unlifted)

    # Budgets

    def above(self, action: Action, others: Iterable[Action]) -> dict[str, bool]:
        """By limit, whether this would be above its cap, after giving back what permits of `others` that ran out hold."""
        found = self._above(action)
        if any(found.values()):
            self._give_back(others)
            found = self._above(action)
        return found

    def used(self, tenant: int, account: str, limit: str) -> int:
        """Held and captured within a cap."""
        return sum(
            one.minor for one in self.actions.values() if (one.tenant, one.account) == (tenant, account)
            and one.budget and one.budget.state != "released" and not one.budget.above[limit]
        )  # fmt: skip

    def _above(self, action: Action) -> dict[str, bool]:
        return {
            limit: self.used(action.tenant, action.account, limit) + action.minor > cap for limit, cap in CAPS.items()
        }

    def _permit(self, action: Action, above: dict[str, bool]) -> None:
        action.permits += 1
        action.permit, action.permit_ends = action.permits, self.now + PERMIT_SECONDS
        action.budget = Budget(above)

    def _take_back(self, action: Action) -> None:
        action.permit, action.holds_once = 0, action.holds_once and action.question is not None
        if action.budget and action.budget.state == "held":
            action.budget.state = "released"

    def _give_back(self, actions: Iterable[Action]) -> None:
        for one in actions:
            if one.status in ("allowed", "approved") and one.permit and one.permit_ends <= self.now:
                self._take_back(one)

    def _give_back_once(self, holders: Sequence[Action]) -> None:
        """What a permit or a question that ran out still holds once."""
        self._give_back(holders)
        for one in holders:
            self.expire_question(one)

    def _others(self, action: Action) -> list[Action]:
        return [one for one in self.actions.values() if one is not action and one.tenant == action.tenant]

    def _of_account(self, action: Action) -> list[Action]:
        return [one for one in self._others(action) if one.account == action.account]

    # People

    def _ask(self, action: Action, reasons: frozenset[str]) -> Question:
        people = 2 if action.minor >= TWO_PEOPLE_FROM else 1
        return Question(reasons, self.now + APPROVAL_SECONDS, people)

    def decide(self, action: Action, person: str, verdict: str) -> str:
        """A person's vote: what becomes of the question, or the code of the refusal."""
        if action.status != "pending" or action.question is None or self.expire_question(action):
            return "conflict"
        question = action.question
        if person == "viewer":
            return "forbidden"
        if person in question.yes:
            return "conflict"
        if verdict == "approve":
            question.yes.add(person)
            if len(question.yes) < question.people:
                return "recorded"
            question.granted, action.status = True, "approved"
            return "approved"
        action.status, action.decision = "denied", "DENY"
        action.reason = "handled_by_person" if verdict == "handled" else "approval_rejected"
        action.holds_once = action.holds_once and verdict == "handled"
        return "handled" if verdict == "handled" else "rejected"

    def expire_question(self, action: Action) -> bool:
        """Whether the question of a pending action is over; then it is expired."""
        if action.status != "pending" or action.question is None or action.question.ends > self.now:
            return False
        action.status, action.reason, action.holds_once = "expired", "approval_expired", False
        return True

    # Doing

    def redeem(self, action: Action, permit: int, start: str) -> bool:
        """Whether a start with this permit is confirmed, now or once before."""
        if action.not_executed:
            return False
        if action.start is not None:
            own = (action.start, action.permit) == (start, permit)
            if own and action.status in ("started", "in_doubt"):
                action.act_until = max(action.act_until, self.now + REPORT_SECONDS)
            return own
        good = action.status in ("allowed", "approved") and permit == action.permit != 0
        if not good or action.permit_ends <= self.now or self.halted(action.tenant):
            return False
        action.status, action.start, action.started_at = "started", start, self.now
        action.act_until = self.now + REPORT_SECONDS
        return True

    def report(self, action: Action, outcome: str) -> bool:
        """Whether a report is taken."""
        if action.start is None:
            return False
        if action.reported is not None:
            return action.reported == outcome
        if action.status == "completed" and action.outcome != outcome:
            return False
        action.reported = outcome
        done = action.status == "completed" or outcome == "success"
        action.status, action.outcome = "completed" if done else "in_doubt", outcome
        if outcome == "success":
            self._settle(action, "captured")
        elif not done:
            action.act_until = min(action.act_until, self.now)
        return True

    def resolve(self, action: Action, executed: bool) -> bool:
        """Whether an administrator's finding on a doubt is taken."""
        if action.status != "in_doubt" or (not executed and action.act_until > self.now):
            return False
        action.not_executed = not executed
        action.status, action.outcome = "completed", "success" if executed else "error"
        action.holds_once = action.holds_once and executed
        self._settle(action, "captured" if executed else "released")
        return True

    def _settle(self, action: Action, state: str) -> None:
        if action.budget and action.budget.state == "held":
            action.budget.state = state

    # Time

    def run_housekeeping(self) -> None:
        """What time does by itself."""
        self._give_back(self.actions.values())
        for one in self.actions.values():
            self.expire_question(one)
            if one.status == "started" and one.started_at < self.now - REPORT_SECONDS:
                one.status = "in_doubt"


def _policy(minor: int, escalation: str | None) -> tuple[str, tuple[str, ...]]:
    """The policy alone: its decision and its reasons, the one that counts first."""
    if minor > APPROVE_UP_TO:
        return "DENY", ("over_limit",)
    wanted = ([escalation] if escalation else []) + (["amount_needs_approval"] if minor > ALLOW_UP_TO else [])
    return ("APPROVAL_REQUIRED", tuple(wanted)) if wanted else ("ALLOW", ("within_policy_limit",))
