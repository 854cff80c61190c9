"""How things stood over the last hour: sampled beside the pages, drawn with how they stand now at the end."""

from __future__ import annotations

import re
from typing import Any

import pytest

from ops_console.pages.hour_charts import HEIGHT, WIDTH, Drawing, drawn, seconds_drawn
from ops_console.periodic import start_sampler
from ops_console.read_models import gauges
from ops_console.read_models.gauges import Sample
from sentinel.core.errors import EngineUnavailable
from sentinel.store.database import CONSOLE, Pool, with_role
from tests.support.served_programs import eventually

AWAY = "postgresql://nobody@127.0.0.1:1/nothing"


def stood(seconds_ago: float, value: float | None) -> Sample:
    return Sample(seconds_ago, 0.0, 0, 0, value)


def lag_drawn(*samples: Sample, now: float, least_top: float = 1.0) -> Drawing:
    return drawn(samples, lambda one: one.worker_lag_seconds, now=now, least_top=least_top)


def test_a_drawing_ends_with_now_and_its_highest_value_fills_the_height() -> None:
    found = lag_drawn(stood(3600, None), stood(1800, 0.0), stood(1740, 8.0), stood(60, 4.0), now=2.0)
    assert found.most == 8.0
    first, second = found.line.split("M")[1:]
    assert first == f"{WIDTH / 2:.1f} {HEIGHT:.1f}L{WIDTH * 31 / 60:.1f} 3.0", "then nobody measured for half an hour"
    assert second.endswith(f"L{WIDTH:.1f} {HEIGHT - (HEIGHT - 3) / 4:.1f}")
    assert found.area.count("Z") == 2


def test_a_trifle_is_no_peak_and_a_moment_alone_can_be_seen() -> None:
    assert lag_drawn(now=0.5, least_top=10.0).line == f"M{WIDTH:.1f} {HEIGHT - (HEIGHT - 3) / 20:.1f}h-2"
    assert lag_drawn(stood(3605, 1.0), now=0.0).line.startswith("M0.0 3.0h2M"), "never left of the box"


def test_while_there_is_less_than_an_hour_the_drawing_is_as_wide_as_what_there_is() -> None:
    assert [seconds_drawn(found) for found in ([], [stood(20, 0.0)], [stood(600, None), stood(20, 0.0)])] == [
        180,
        180,
        600,
    ]
    assert {seconds_drawn([stood(ago, 0.0)]) for ago in (3609, 3600, 3580)} == {3600}
    assert (
        lag_drawn(stood(90, 1.0), stood(45, 1.0), now=1.0).line
        == f"M{WIDTH / 2:.1f} 3.0L{WIDTH * 3 / 4:.1f} 3.0L{WIDTH:.1f} 3.0"
    )


def test_what_was_not_measured_is_a_gap_and_not_zero() -> None:
    found = lag_drawn(stood(300, 1.0), *(stood(ago, None) for ago in range(280, 100, -20)), stood(80, 1.0), now=1.0)
    assert found.line.count("M") == 2
    assert found.most == 1.0


def samples(fixtures: Any, tenant_id: Any = None) -> list[tuple[float, int, int, float | None]]:
    return [
        (round(one.oldest_waiting_seconds, -1), one.in_doubt, one.halts, one.worker_lag_seconds)
        for one in gauges.last_hour(fixtures.pool, tenant_id or fixtures.tenant_id)
    ]


def test_every_tenant_is_sampled_once_in_a_while_and_only_with_its_own(fixtures: Any) -> None:
    other = fixtures.tenant("other")
    waiting = fixtures.approval("200.00")
    fixtures.sql("update sentinel.approvals set created_at = now() - interval '10 min' where approval_id = %s", waiting)
    fixtures.sql("update sentinel.approvals set expires_at = now() where approval_id = %s", fixtures.approval("300.00"))
    fixtures.guard("10.00")
    fixtures.sql("update sentinel.operation_states set status = 'in_doubt', started_at = now(), in_doubt_reason = 'no_report',"
              " in_doubt_since = now() where decision = 'ALLOW'")  # fmt: skip
    for owner, scope in ((fixtures.tenant_id, "tenant"), ("00000000-0000-0000-0000-000000000000", "global")):
        fixtures.sql("insert into sentinel.halts (tenant_id, halt_id, scope, reason, set_by, set_at)"
                  " values (%s, gen_random_uuid(), %s, 'x', 'x', now())", owner, scope)  # fmt: skip
    fixtures.sql("insert into refunds.ledger_entries (tenant_id, ledger_entry_id, refund_id, amount_minor, currency, next_attempt_at)"
              " values (%s, 'lge_late', 'r', 100, 'USD', now() - interval '1 h'),"
              " (%s, 'lge_later', 'r', 100, 'USD', now() + interval '1 h')", fixtures.tenant_id, fixtures.tenant_id)  # fmt: skip

    lags = gauges.worker_lags(fixtures.pool)
    assert [(one.tenant_id, round(one.seconds, -1)) for one in lags] == [(fixtures.tenant_id, 3600)]
    assert gauges.take_samples(fixtures.pool, lags, apart_seconds=18.0) == 2
    (found,) = samples(fixtures)
    assert (found[:3], round(found[3], -1)) == ((600, 1, 2), 3600)
    assert samples(fixtures, other) == [(0, 0, 1, 0)], "a global halt is everybody's"

    assert gauges.take_samples(fixtures.pool, lags, apart_seconds=18.0) == 0, "another console came soon after"
    fixtures.sql("update sentinel.gauge_samples set taken_at = taken_at - interval '50 min'")
    assert gauges.take_samples(fixtures.pool, None, apart_seconds=18.0) > 0
    assert [one[3] is None for one in samples(fixtures)] == [False, True], "a ledger that is away is not a lag of zero"
    fixtures.sql("update sentinel.gauge_samples set taken_at = taken_at - interval '80 min'")
    assert samples(fixtures) == []
    gauges.take_samples(fixtures.pool, None, apart_seconds=18.0)
    assert fixtures.sql("select count(*) from sentinel.gauge_samples where tenant_id = %s", fixtures.tenant_id) == [
        (2,)
    ], "what no drawing reaches back to is thrown away"


def test_the_overview_draws_the_hour_and_says_it_in_words(fixtures: Any) -> None:
    vic = fixtures.browser("vic", "viewer")
    fixtures.sql("insert into sentinel.gauge_samples (tenant_id, taken_at, oldest_waiting_seconds, in_doubt, halts)"
              " values (%s, now() - interval '30 min', 7200, 3, 1), (%s, now() - interval '59 min', 0, 0, 0)",
              fixtures.tenant_id, fixtures.tenant_id)  # fmt: skip
    shown = vic.get("/ops/overview/now").get_data(as_text=True)
    assert re.findall(r'aria-label="([^"]+)"', shown) == [
        "Oldest pending over the last hour: at most 2 h 0 min; now none",
        "In doubt over the last hour: at most 3; now 0",
        "Worker lag over the last hour: none; now none",
        "Halts in force over the last hour: at most 1; now 0",
    ]
    assert re.findall(r'class="line" d="([^"]+)"', shown)[1] == (
        f"M{WIDTH / 60:.1f} {HEIGHT:.1f}h-2M{WIDTH / 2:.1f} 3.0h-2M{WIDTH:.1f} {HEIGHT:.1f}h-2"
    )


def test_the_sampler_waits_for_a_database_that_is_away_and_goes_on(
    fixtures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ops_console.periodic.SAMPLE_SECONDS", 0.05)
    pool, ledger = Pool(with_role(fixtures.url, CONSOLE), size=1), Pool(AWAY, size=1)
    is_over, refusals, take = False, [1, 2], gauges.take_samples

    def take_or_refuse(*args: Any, **rest: Any) -> int:
        if refusals:
            raise {1: ValueError("a fault of ours"), 2: EngineUnavailable("the database is away")}[refusals.pop()]
        return take(*args, **rest)

    monkeypatch.setattr("ops_console.periodic.gauges.take_samples", take_or_refuse)
    start_sampler(pool, ledger, stopping=lambda: is_over)
    try:
        assert eventually(lambda: len(samples(fixtures)) >= 2, within=20)
        assert {one[3] for one in samples(fixtures)} == {None}
    finally:
        is_over = True
        pool.close()
        ledger.close()
