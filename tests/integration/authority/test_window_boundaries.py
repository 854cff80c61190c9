"""G6: midnight, daylight saving and month ends neither double a budget nor lose one, whoever asks at once."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sentinel.authority.decisions import Recorded
from sentinel.authority.policies import declare_policies
from tests import mutants
from tests.support.clock import set_clock, take_over
from tests.support.fixtures import Fixtures, guard_body, make_fixtures, unique
from tests.support.harness import Desk, at_once, desks, scaled
from tests.support.windows import MICRO, ZONES, Instant, instants, rolling_counts, rolls_off, window_of

pytestmark = pytest.mark.usefixtures("patient")
CAP, ROOM, ASKERS = 20, 2, 4
"""The cap, how many refunds of `CAP / ROOM` fit it, and how many ask at once."""

POLICY = """
policy: w-{name}
label: Window {name}
version: w-v1
actions: [w.{name}]
zone: {zone}
facts:
  amount:  {{type: money,  from: params.amount}}
  account: {{type: string, from: params.account_ref, vouched_by: worker}}
numbers: {{most: {{USD: "1000.00"}}}}
rules:
  - {{id: fine, says: The amount is small enough., when: amount_minor <= numbers.most, then: ALLOW, reason: within_policy_limit}}
limits:
  - {{id: all, says: What one account gets in the window., window: {window}, per: [account, currency], cap: {{USD: "{cap}.00"}}, then: DENY, reason: limit_exceeded}}
approval: {{expires: 30m, role: approver, people: 1}}
"""

ROLLING = {"rolling 24h": (86_400, 300), "rolling 90d": (90 * 86_400, 86_400)}
"""Window and slice in seconds."""

CALENDAR = ("calendar_day", "calendar_month")


def name_of(window: str, zone: str) -> str:
    return f"{window}-{zone}".lower().translate(str.maketrans(" _/", "---"))


def write_policies(folder: Path) -> Path:
    for window, zone in [*itertools.product(CALENDAR, ZONES), *((window, "UTC") for window in ROLLING)]:
        name = name_of(window, zone)
        (folder / f"{name}.yaml").write_text(POLICY.format(name=name, zone=zone, window=window, cap=CAP))
    return folder


@pytest.fixture
def clocked(database_url: str, tmp_path: Path) -> Iterator[Fixtures]:
    """A set of fixtures whose time a test sets and whose policies have one limit each."""
    fixtures = make_fixtures(database_url, policies=write_policies(tmp_path))
    take_over(fixtures)
    yield fixtures
    fixtures.close()


def body(window: str, zone: str, account: str) -> dict[str, Any]:
    return guard_body(value=CAP // ROOM, action=f"w.{name_of(window, zone)}", params={"account_ref": account})


def guard_at_once(bench: list[Desk], window: str, zone: str, account: str) -> list[tuple[dict[str, Any], Recorded]]:
    """`ASKERS` refunds of one account at one moment, over all desks: those that were allowed."""
    asked = [body(window, zone, account) for _ in range(ASKERS)]
    answers = at_once([lambda ask=ask, desk=desk: desk.guard(ask) for ask, desk in zip(asked, itertools.cycle(bench))])  # type: ignore[misc]
    failed = [answer for answer in answers if isinstance(answer, BaseException)]
    assert not failed, failed
    return [(ask, got) for ask, got in zip(asked, answers, strict=True) if got.decision == "ALLOW"]  # type: ignore[union-attr]


def guard_in_turn(bench: list[Desk], window: str, zone: str, account: str) -> list[tuple[dict[str, Any], Recorded]]:
    """The same, one after another: each decided alone."""
    asked = [body(window, zone, account) for _ in range(ASKERS)]
    answers = [(ask, bench[0].guard(ask)) for ask in asked]
    return [(ask, got) for ask, got in answers if got.decision == "ALLOW"]


def settle(desk: Desk, allowed: list[tuple[dict[str, Any], Recorded]]) -> None:
    for ask, permit in allowed:
        desk.start(ask, permit)
        desk.report(ask)


def around(fixtures: Fixtures, bench: list[Desk], window: str, instant: Instant, fate: str) -> list[str]:
    """The budget one microsecond before, at and after an instant, against the oracle: what differs.

    fate: "leave" the permits, "capture" them at once, or "late": held before the instant, captured after it.
    """
    account, spent, wrong, late = unique("acct"), Counter[tuple[int, ...]](), [], []
    for moment in (instant.at - MICRO, instant.at, instant.at + MICRO):
        set_clock(fixtures, moment)
        allowed = guard_at_once(bench, window, instant.zone, account)
        here = window_of(window, instant.zone, moment)
        wanted = min(ASKERS, ROOM - spent[here])
        spent[here] += len(allowed)
        if len(allowed) != wanted:
            wrong.append(f"{window} {instant.zone}, {instant.what}: {len(allowed)} instead of {wanted} at {moment}")
        if {got.decided_at for _, got in allowed} - {moment}:
            wrong.append("the clock was not the one that was set")
        late += [pair for pair in allowed if fate == "late"]
        if fate == "capture":
            settle(bench[0], allowed)
    settle(bench[0], late)
    if late and bench[0].guard(body(window, instant.zone, account)).decision == "ALLOW":
        wrong.append(f"{window} {instant.zone}, {instant.what}: capturing made room")
    return wrong


def differences(fixtures: Fixtures, window: str, places: list[Instant]) -> list[str]:
    """What the authority and the oracle disagree on; the checker of this file."""
    fates, found = itertools.cycle(("leave", "late", "leave", "capture")), []
    with desks(fixtures, 2) as bench:
        for instant in places:
            found += around(fixtures, bench, window, instant, next(fates))
    print(f"N={len(places)} instants x 3 moments x {ASKERS} at once")
    return found or fixtures.broken_invariants()


def test_a_day_has_its_budget_once_in_every_zone(clocked: Fixtures) -> None:
    places = list(instants())
    assert len(places) >= 96
    assert sum(one.what == "the clocks change" for one in places) >= 12
    assert differences(clocked, "calendar_day", places) == []


def test_a_month_has_its_budget_once_in_every_zone(clocked: Fixtures) -> None:
    places = [one for one in instants() if "-" in one.what]
    assert len(places) == len(ZONES) * 6
    assert differences(clocked, "calendar_month", places) == []


@pytest.mark.parametrize(
    ("cut", "instead", "window"),
    [
        ("date_trunc('day', moment, zone)", "date_trunc('day', moment, 'UTC')", "calendar_day"),
        ("date_trunc('month', moment, zone)", "date_trunc('month', moment, 'UTC')", "calendar_month"),
        # A day of 24 hours from a zone's usual offset, which knows no daylight saving.
        (
            "date_trunc('day', moment, zone)",
            "date_trunc('day', moment at time zone 'UTC' + '1 hour') at time zone 'UTC' - '1 hour'::interval",
            "calendar_day",
        ),
    ],
    ids=["a UTC day", "a UTC month", "a fixed offset"],
)
def test_mutant_with_a_naive_calendar_is_caught(clocked: Fixtures, cut: str, instead: str, window: str) -> None:
    mutants.cut(clocked, "sentinel.part_of", cut, instead)
    berlin = [one for one in instants() if one.zone == "Europe/Berlin"]
    found = differences(clocked, window, berlin)
    assert any("instead of" in text for text in found)


def rolling_differences(fixtures: Fixtures, window: str, spends: list[datetime]) -> list[str]:
    """A budget spent at a moment, against the oracle at later moments: midnight, the last it counts, the first it does not."""
    seconds, part = ROLLING[window]
    found = []
    with desks(fixtures, 2) as bench:
        for spent_at in spends:
            account, free = unique("acct"), rolls_off(spent_at, window=seconds, part=part)
            assert timedelta(0) < free - (spent_at + timedelta(seconds=seconds)) <= timedelta(seconds=part)
            midnight = spent_at.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
            set_clock(fixtures, spent_at)
            settle(bench[0], guard_at_once(bench, window, "UTC", account))
            for moment in sorted({midnight, spent_at + timedelta(seconds=seconds), free - MICRO, free}):
                set_clock(fixtures, moment)
                counts = rolling_counts(spent_at, moment, window=seconds, part=part)
                allowed = guard_at_once(bench, window, "UTC", account)
                if len(allowed) != (0 if counts else ROOM):
                    found.append(f"{window}: {len(allowed)} at {moment} after {ROOM} at {spent_at}")
    return found or fixtures.broken_invariants()


def late_evenings() -> list[datetime]:
    """The last microsecond, the first and one between of days at whose midnight a calendar budget begins anew."""
    days = [one.at for one in instants() if one.zone == "UTC"]
    return [moment for day in days for moment in (day - MICRO, day, day - timedelta(hours=3, seconds=1))]


@pytest.mark.parametrize("window", ROLLING)
def test_a_rolling_budget_is_neither_doubled_at_midnight_nor_held_longer_than_one_slice(
    clocked: Fixtures, window: str
) -> None:
    assert rolling_differences(clocked, window, late_evenings()) == []


@pytest.mark.parametrize("window", ROLLING)
def test_mutant_that_counts_only_the_slice_at_hand_is_caught(clocked: Fixtures, window: str) -> None:
    mutants.cut(clocked, "sentinel.first_part_of", "moment - make_interval(secs => window_seconds)", "moment")
    assert any("after" in text for text in rolling_differences(clocked, window, late_evenings()[:3]))


def spread_differences(fixtures: Fixtures, window: str, ask_all: Any) -> list[str]:
    """A rolling budget spent over two parts of its window, the second while the first still counts.

    ask_all: `guard_at_once` or `guard_in_turn`.
    """
    seconds, part = ROLLING[window]
    first, found, account = late_evenings()[0], [], unique("acct")
    with desks(fixtures, 2) as bench:
        set_clock(fixtures, first)
        ask = body(window, "UTC", account)
        settle(bench[0], [(ask, bench[0].guard(ask))])
        for turn, want in ((1, ROOM - 1), (2, 0)):
            set_clock(fixtures, first + timedelta(seconds=turn * part))
            allowed = ask_all(bench, window, "UTC", account)
            settle(bench[0], allowed)
            if len(allowed) != want:
                found.append(f"{window}: {len(allowed)} instead of {want} in part {turn} of {seconds} s")
    return found or fixtures.broken_invariants()


@pytest.mark.parametrize("window", ROLLING)
@pytest.mark.parametrize("ask_all", [guard_at_once, guard_in_turn], ids=["at once", "in turn"])
def test_a_part_that_is_over_still_counts_in_a_rolling_budget(clocked: Fixtures, window: str, ask_all: Any) -> None:
    assert spread_differences(clocked, window, ask_all) == []


@pytest.mark.parametrize(
    ("function", "fence", "instead"),
    [
        ("sentinel.hold_part", "b.held[slot], b.captured[slot])", "0, 0)"),
        ("sentinel.tight_sums", "p.bucket >= parts.since", "false and p.bucket >= parts.since"),
        ("sentinel.hold_alone", "and p.bucket >= ", "and false and p.bucket >= "),
    ],
    ids=["is forgotten", "is not looked for", "is not looked for alone"],
)
def test_mutants_that_lose_a_part_that_is_over_are_caught(
    clocked: Fixtures, function: str, fence: str, instead: str
) -> None:
    """In turn: of a batch that fits nowhere each is decided by its own, which hides what the look for room overlooks."""
    mutants.cut(clocked, function, fence, instead)
    if function == "sentinel.tight_sums":
        mutants.without_the_plain_way_alone(clocked.admin)
    found = spread_differences(clocked, next(iter(ROLLING)), guard_in_turn)
    assert any(" instead of " in text for text in found)


def until(boundary: datetime, desk: Desk, zone: str, account: str) -> list[Recorded]:
    """Refund after refund of one account until the boundary is some way behind."""
    got: list[Recorded] = []
    while not got or got[-1].decided_at < boundary + timedelta(milliseconds=100):
        got.append(desk.guard(body("calendar_day", zone, account)))
    return got


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/Santiago"])
def test_while_the_clock_runs_over_a_boundary_each_side_gets_its_budget_once(clocked: Fixtures, zone: str) -> None:
    place = next(one for one in instants() if one.zone == zone and "after" in one.what)
    for _ in range(scaled(2)):
        account = unique("acct")
        with desks(clocked, 2) as bench:
            at_once([lambda desk=desk: desk.guard(body("calendar_day", zone, unique("acct"))) for desk in bench * 3])
            set_clock(clocked, place.at - timedelta(milliseconds=300), ticks=True)
            answers = at_once([lambda desk=desk: until(place.at, desk, zone, account) for desk in bench * 3])
        got = [one for answer in answers for one in answer]  # type: ignore[union-attr]
        sides = Counter((one.decision, one.decided_at >= place.at) for one in got)
        assert sides["DENY", True] >= 1, "it never came to the cap after the boundary"
        assert sides["ALLOW", False] == min(ROOM, sides["ALLOW", False] + sides["DENY", False])
        assert sides["ALLOW", True] == ROOM, "no more and no less on either side"
    assert clocked.broken_invariants() == []


# A window that the policy changes: earlier parts keep the terms of their time ------------------------------------------

NOON = datetime(2027, 5, 12, 12, tzinfo=UTC)


def declared(desk: Desk, folder: Path, window: str, cap: int) -> None:
    """From now on the limit has this window and cap."""
    (folder / "changing.yaml").write_text(POLICY.format(name="changing", zone="UTC", window=window, cap=cap))
    desk.authority.policies.reload()
    declare_policies(desk.authority)


def paid(desk: Desk, account: str, number: int) -> int:
    """How many of so many refunds of 10 are allowed; they are paid then."""
    asked = [guard_body(value=10, action="w.changing", params={"account_ref": account}) for _ in range(number)]
    allowed = [(one, got) for one in asked if (got := desk.guard(one)).decision == "ALLOW"]
    settle(desk, allowed)
    return len(allowed)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("rolling 24h", "rolling 7d"),
        ("rolling 24h", "calendar_day"),
        ("rolling 90d", "calendar_month"),
        ("calendar_day", "rolling 24h"),
    ],
)
def test_a_window_that_the_policy_changes_is_no_damage(
    clocked: Fixtures, tmp_path: Path, before: str, after: str
) -> None:
    """The finding: what is used after such a change may be counted in an earlier part, behind one with the smaller cap of before."""
    account = unique("acct")
    with desks(clocked, 1) as (desk,):
        for minute, window, cap, fits in (
            (1, before, 10, 1), (37, before, 20, 1), (43, after, 60, 4), (49, before, 90, 3), (55, after, 120, 3),
        ):  # fmt: skip
            set_clock(clocked, NOON + timedelta(minutes=minute))
            declared(desk, tmp_path, window, cap)
            assert paid(desk, account, fits + 1) == fits, f"{window}: all that was used today counts"
            assert clocked.broken_invariants() == []
