"""The intake refuses to start where an analyst's decision could not be one transaction."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path

import pytest
from click.testing import CliRunner

from sentinel.platform.settings import UnsafeConfiguration
from worker.orders.build import read_sources
from worker.orders.cli import serve
from worker.orders.settings import load_order_settings
from worker.orders.sources import FILE_NAME

WITH_A_LOOKUP = """
sources:
  mine:
    scheme: hex
    header: X-Mine
    secret: MINE_SECRET
    fields: {order_id: order.id, amount: order.amount}
    lookups: [{url: "https://customers.example/{account_ref}", fields: {account_age_days: age_days}}]
"""

HERE = "postgresql://sentinel_orders:hidden-word@db.example/sentinel"
ELSEWHERE = "postgresql://sentinel_orders:hidden-word@db.example/orders"
SAME = [
    "postgresql://sentinel_admin@db.example/sentinel", "postgresql://db.example:5432/sentinel?connect_timeout=3",
    "postgresql+psycopg://someone@db.example/sentinel", "host=db.example dbname=sentinel user=sentinel_worker",
    "postgresql://sentinel@db.example/",
]  # fmt: skip
OTHER = [
    "postgresql://db.example:5433/sentinel", "postgresql://db2.example/sentinel", "postgresql://db.example/other",
    "postgresql:///sentinel?host=/tmp/a",
]  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("SENTINEL_", "WORKER_", "ORDERS_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SENTINEL_ORDERS_API_KEY", "snt_live_only-for-tests")
    monkeypatch.setenv("ORDERS_DATABASE_URL", HERE)


@pytest.mark.parametrize("variable", ["SENTINEL_DATABASE_URL", "WORKER_DATABASE_URL"])
@pytest.mark.parametrize("other", OTHER)
def test_another_database_for_approvals_or_refunds_is_refused_in_one_line_without_a_password(
    monkeypatch: pytest.MonkeyPatch, variable: str, other: str
) -> None:
    monkeypatch.setenv(variable, other)
    done = CliRunner().invoke(serve, [])
    assert (done.exit_code, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert done.stderr.startswith("Error: ORDERS_DATABASE_URL")
    assert variable in done.stderr
    assert "must be in one database" in done.stderr
    assert "hidden-word" not in done.stderr


@pytest.mark.parametrize("other", SAME)
def test_the_same_database_under_another_login_is_the_same(monkeypatch: pytest.MonkeyPatch, other: str) -> None:
    monkeypatch.setenv("SENTINEL_DATABASE_URL", other)
    monkeypatch.setenv("WORKER_DATABASE_URL", other)
    assert load_order_settings().database_url == HERE


def test_this_machine_has_more_than_one_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORDERS_DATABASE_URL", "postgresql://localhost/sentinel")
    for other in ("postgresql://127.0.0.1/sentinel", "postgresql://[::1]:5432/sentinel"):
        monkeypatch.setenv("WORKER_DATABASE_URL", other)
        assert load_order_settings().port == 7862


def test_both_are_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SENTINEL_DATABASE_URL", ELSEWHERE)
    monkeypatch.setenv("WORKER_DATABASE_URL", ELSEWHERE)
    done = CliRunner().invoke(serve, [])
    assert [name for name in ("SENTINEL_DATABASE_URL", "WORKER_DATABASE_URL") if name in done.stderr] == [
        "SENTINEL_DATABASE_URL",
        "WORKER_DATABASE_URL",
    ]


def test_what_is_malformed_and_what_is_unsafe_are_told_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SENTINEL_ORDERS_LEASE_SECONDS", "x")
    monkeypatch.setenv("SENTINEL_ORDERS_BUDGET_SECONDS", "60")
    monkeypatch.setenv("SENTINEL_ORDERS_API_KEY", "")
    monkeypatch.setenv("SENTINEL_DATABASE_URL", ELSEWHERE)
    told = CliRunner().invoke(serve, []).stderr
    for name in ("SENTINEL_ORDERS_LEASE_SECONDS", "SENTINEL_ORDERS_API_KEY", "SENTINEL_DATABASE_URL"):
        assert told.count(name + ":") + told.count(name + " (") == 1
    # 60 is more than the lease's default, which nobody asked for.
    assert "SENTINEL_ORDERS_BUDGET_SECONDS" not in told


@pytest.mark.parametrize("url", ["http://a..b:7860", "http://.b:7860", "http://127.0.0.1:78600"])
def test_a_mistyped_address_of_the_authority_is_refused(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("SENTINEL_URL", url)
    with pytest.raises(UnsafeConfiguration, match="SENTINEL_URL: must look like http://host:port"):
        load_order_settings()


def test_without_an_address_of_its_own_it_uses_the_authoritys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ORDERS_DATABASE_URL")
    monkeypatch.setenv("SENTINEL_DATABASE_URL", HERE)
    assert load_order_settings().database_url == HERE


@pytest.mark.parametrize(("budget", "refused"), [("16", True), ("17", False)])
def test_a_budget_that_leaves_a_model_or_a_lookup_no_time_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, budget: str, refused: bool
) -> None:
    monkeypatch.setenv("SENTINEL_ORDERS_BUDGET_SECONDS", budget)
    monkeypatch.setenv("SENTINEL_POLICIES_DIR", str(tmp_path))
    (tmp_path / FILE_NAME).write_text(WITH_A_LOOKUP)
    settings = load_order_settings()
    with pytest.raises(UnsafeConfiguration, match="SENTINEL_ORDERS_BUDGET_SECONDS") if refused else nullcontext():
        read_sources(settings)
    monkeypatch.setenv("SENTINEL_ORDERS_MODEL_URL", "https://model.example/v1")
    monkeypatch.setenv("SENTINEL_ORDERS_MODEL", "small")
    with pytest.raises(UnsafeConfiguration, match="SENTINEL_ORDERS_BUDGET_SECONDS") if refused else nullcontext():
        load_order_settings()


@pytest.mark.parametrize(("budget", "refused"), [("16", True), ("17", False)])
def test_a_source_that_gains_lookups_while_it_runs_needs_time_for_them_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, budget: str, refused: bool
) -> None:
    """Else each of its orders would go to a person as out of time, and nobody would be told why."""
    monkeypatch.setenv("SENTINEL_ORDERS_BUDGET_SECONDS", budget)
    monkeypatch.setenv("SENTINEL_POLICIES_DIR", str(tmp_path))
    (tmp_path / FILE_NAME).write_text("\n".join(line for line in WITH_A_LOOKUP.split("\n") if "lookups" not in line))
    sources = read_sources(load_order_settings())
    (tmp_path / FILE_NAME).write_text(WITH_A_LOOKUP)
    monkeypatch.setattr(sources, "_look_at", 0.0)
    mine = sources.current().find("mine")
    assert mine is not None and (mine.lookups == ()) is refused
    assert ("SENTINEL_ORDERS_BUDGET_SECONDS" in str(sources.error)) is refused
