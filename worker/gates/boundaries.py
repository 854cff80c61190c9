"""Finds the limits of a policy that a case reaches exactly, or exceeds by one minor unit, from the case's inputs and label alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from worker.gates.cases import Case
from worker.gates.run_request import RunRequest, Window

EXACT, OVER = "exact", "over"
_DAY, _MONTH = 86_400, 32 * 86_400
_COUNTS: dict[str, tuple[bool, int, bool]] = {
    # (counts in a calendar day, length in seconds of the shortest rolling window in which it counts, counts in a
    # calendar month)
    "today": (True, 0, True),
    "yesterday": (False, _DAY, True),
    "this_month": (False, _DAY + 1, True),
    "older": (False, _MONTH, False),
}


@dataclass(frozen=True, slots=True, order=True)
class Boundary:
    """One side of one limit in one currency; `name` is the limit's id, "tenth" (of what was paid) or "cap"."""

    name: str
    currency: str
    side: str

    def __str__(self) -> str:
        return f"{self.name} {self.currency} {'exactly' if self.side == EXACT else 'one minor unit over'}"


def counts_in(ago: str, window: Window) -> bool:
    """Whether a refund of this age (one of `AGO`) counts in the window."""
    if ago not in _COUNTS:
        return False
    day, shortest, month = _COUNTS[ago]
    if window.kind == "rolling":
        return window.seconds >= shortest
    return day if window.kind == "calendar_day" else month


def wanted(job: RunRequest) -> set[Boundary]:
    """The boundaries that the cases must cover: both sides of every limit of the policy, in every currency that it has limits for."""
    names = {(window.id, window.currency) for window in job.windows}
    names |= {(name, currency) for currency in job.caps for name in ("tenth", "cap")}
    return {Boundary(name, currency, side) for name, currency in names for side in (EXACT, OVER)}


def of_case(case: Case, job: RunRequest) -> set[Boundary]:
    """The boundaries that the case tests: exact ones if it is labelled to execute, exceeded ones if it is labelled to go to a person."""
    side = {"execute": EXACT, "person": OVER}.get(case.want.end)
    currency, amount, cap = case.given.currency, case.given.amount_minor, job.caps.get(case.given.currency)
    if side is None or cap is None:
        return set()
    tenth, beyond = case.given.paid_minor // 10, 0 if side is EXACT else 1
    found = set()
    if amount == tenth + beyond and amount <= cap:
        found.add("tenth")
    if amount == cap + beyond and amount <= tenth:
        found.add("cap")
    at = [window for window in _of(job.windows, currency) if _stands_at(case, window, window.cap_minor + beyond)]
    if amount <= min(tenth, cap) and at:
        # A case at two limits at once tests only the narrower one, which would stop it before the wider one does.
        found.add(min(at, key=_width).id)
    return {Boundary(name, currency, side) for name in found}


def _of(windows: Iterable[Window], currency: str) -> list[Window]:
    return [window for window in windows if window.currency == currency]


def _stands_at(case: Case, window: Window, total: int) -> bool:
    used = sum(earlier.amount_minor for earlier in case.given.before if counts_in(earlier.ago, window))
    return used > 0 and used + case.given.amount_minor == total


def _width(window: Window) -> int:
    return {"calendar_day": 0, "calendar_month": _MONTH - 1}.get(window.kind, window.seconds)
