"""What a limit's window is, said once more and without SQL: the oracle of the tests of midnight, DST and month ends.

A calendar window is named by the local date (or month) of a moment, which `zoneinfo` knows; a rolling one by the slices
it covers. Nothing here truncates times the way the database does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

MICRO = timedelta(microseconds=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

ZONES = (
    "UTC", "Europe/Berlin", "America/New_York", "Pacific/Auckland", "Asia/Kolkata", "Asia/Kathmandu",
    "America/Santiago",     # clocks go forward at midnight: a day that begins at 01:00
    "America/Havana",       # clocks go back to midnight: a midnight that comes twice
    "Australia/Lord_Howe",  # by half an hour
    "Pacific/Kiritimati",   # 14 hours ahead of UTC
)  # fmt: skip

DATES = tuple(
    map(date.fromisoformat, ("2027-01-01", "2027-02-28", "2027-03-01", "2028-02-29", "2028-03-01", "2027-05-01"))
)
"""Days whose beginning is asked about in every zone: year end, 28 and 29 February, month ends."""


@dataclass(frozen=True)
class Instant:
    """A moment at whose sides something may change, in the zone of its window."""

    what: str
    zone: str
    at: datetime


def window_of(kind: str, zone: str, moment: datetime) -> tuple[int, ...]:
    """The name of the calendar window that holds a moment."""
    local = moment.astimezone(ZoneInfo(zone))
    return (local.year, local.month, local.day) if kind == "calendar_day" else (local.year, local.month)


def begins(zone: str, day: date) -> datetime:
    """The first moment whose local date is `day` or later, to the microsecond."""
    before = datetime(day.year, day.month, day.day, tzinfo=UTC) - timedelta(days=2)
    return _first(before, before + timedelta(days=4), lambda moment: moment.astimezone(ZoneInfo(zone)).date() >= day)


def switches(zone: str, year: int) -> list[datetime]:
    """The moments of a year at which the zone's clocks are put forward or back."""
    place, found = ZoneInfo(zone), []
    for number in range(366):
        one = datetime(year, 1, 1, tzinfo=UTC) + timedelta(days=number)
        offset = one.astimezone(place).utcoffset()
        if (one + timedelta(days=1)).astimezone(place).utcoffset() != offset:
            end = one + timedelta(days=1)
            found.append(_first(one, end, lambda moment, was=offset: moment.astimezone(place).utcoffset() != was))
    return found


def instants() -> Iterator[Instant]:
    """Every instant that is asked about: the switches themselves, the midnights around them, and `DATES`."""
    for zone in ZONES:
        for day in DATES:
            yield Instant(f"{day} begins", zone, begins(zone, day))
        for moment in switches(zone, 2027):
            day = moment.astimezone(ZoneInfo(zone)).date()
            yield Instant("the clocks change", zone, moment)
            yield Instant("the day of the change begins", zone, begins(zone, day))
            yield Instant("the day after the change begins", zone, begins(zone, day + timedelta(days=1)))


def slice_of(moment: datetime, seconds: int) -> int:
    """The number of the slice that holds a moment, slices of that length being counted from 1970."""
    return int((moment - EPOCH) // timedelta(seconds=seconds))


def rolling_counts(spent_at: datetime, now: datetime, *, window: int, part: int) -> bool:
    """Whether a rolling window of `window` seconds, kept in slices of `part`, still counts what was spent then."""
    return slice_of(spent_at, part) >= slice_of(now - timedelta(seconds=window), part)


def rolls_off(spent_at: datetime, *, window: int, part: int) -> datetime:
    """The first moment at which it no longer counts: never earlier than promised, at most one slice later."""
    return EPOCH + timedelta(seconds=(slice_of(spent_at, part) + 1) * part + window)


def _first(low: datetime, high: datetime, holds) -> datetime:  # type: ignore[no-untyped-def]
    """The first microsecond in (low, high] at which `holds`, which stays so from there on."""
    assert not holds(low), low
    assert holds(high), high
    while high - low > MICRO:
        middle = low + (high - low) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
