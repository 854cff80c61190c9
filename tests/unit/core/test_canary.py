"""The canary: nobody at 0, everybody at 100, never fewer for more percent, and about as many as it says."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from worker.refunds.workflow.steps.checks import in_canary

TEXT = st.text(max_size=30)
PERCENT = st.integers(0, 100)


@given(TEXT, TEXT)
def test_0_is_nobody_and_100_everybody(switch: str, account: str) -> None:
    assert not in_canary(switch, account, 0) and not in_canary(switch, account, -1)
    assert in_canary(switch, account, 100) and in_canary(switch, account, 1000)


@given(TEXT, TEXT, PERCENT, PERCENT)
def test_a_higher_percentage_only_adds_accounts(switch: str, account: str, one: int, other: int) -> None:
    low, high = sorted((one, other))
    assert not in_canary(switch, account, low) or in_canary(switch, account, high)


def test_the_share_is_about_the_percentage_and_differs_by_switch() -> None:
    accounts = [f"acct_{number}" for number in range(20_000)]
    first = {account for account in accounts if in_canary("a.one", account, 5)}
    second = {account for account in accounts if in_canary("a.two", account, 5)}
    assert 880 < len(first) < 1120 and 880 < len(second) < 1120  # 1000 ± 4 standard deviations
    assert len(first & second) < 100


def test_an_accounts_place_never_moves() -> None:
    # Pinned: another hash would swap the accounts of a running canary on the day of an upgrade.
    found = [percent for percent in range(101) if in_canary("small_refund.refund_fee", "acct_1", percent)]
    assert (found[0], len(found)) == (50, 51)
