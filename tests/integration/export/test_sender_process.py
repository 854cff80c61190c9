"""The sender as a program: what its role may do, starting, ending, and when the demo starts it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from psycopg import errors as pg

from sentinel.authority.actor import local_administrator
from sentinel.authority.webhooks import disable_webhook
from sentinel.demo.processes import DemoSender
from sentinel.export.build import health_app
from sentinel.store.database import EXPORTER, Pool, with_role
from tests.support.export_fixtures import EXPORT_SECRET, Export, exporting
from tests.support.fixtures import Fixtures
from tests.support.logins import make_login, program_url
from tests.support.ports import free_port
from tests.support.served_programs import eventually
from tests.support.warm_process import WarmProcess

MAY_NOT = (
    "select request from sentinel.operations", "select resource from sentinel.approvals", "select * from refunds.orders",
    "select email from sentinel.operators", "select key_hash from sentinel.agent_keys",
    "insert into sentinel.event_rows (tenant_id) select tenant_id from sentinel.events", "delete from sentinel.dead_letters",
    "update sentinel.event_endpoints set url = 'https://elsewhere.example/'",
    "update sentinel.event_endpoints set disabled_at = clock_timestamp(), disabled_reason = 'gone'",
    "insert into sentinel.event_endpoints (tenant_id, endpoint_id, kind, url, position, global_position)"
    " select tenant_id, gen_random_uuid(), 'webhook', 'https://elsewhere.example/', 0, 0 from sentinel.tenants",
    "select sentinel.request_change(null, null, 'x', 'x', '{}', '{}', null, null, 1)",
    "update sentinel.dead_letters set resend_asked_by = 'x'",
)  # fmt: skip


@pytest.fixture
def export(fixtures: Fixtures) -> Iterator[Export]:
    with exporting(fixtures) as made:
        yield made


def test_the_sender_reads_events_and_moves_cursors_and_no_more(export: Export) -> None:
    with export.fixtures.as_role(EXPORTER) as connection:
        for statement in MAY_NOT:
            with pytest.raises(pg.InsufficientPrivilege):
                connection.execute(statement.encode())
        assert connection.execute("select count(*) from sentinel.events").fetchone() != (0,)


def test_a_cursor_goes_forward_and_a_receiver_stays_what_it_is(export: Export) -> None:
    for change in ("position = position - 1", "url = 'https://elsewhere.example/'", "event_types = '{start}'"):
        with pytest.raises(pg.CheckViolation):
            export.fixtures.admin.execute(f"update sentinel.event_endpoints set {change}".encode())


def test_the_command_sends_until_it_is_told_to_end(export: Export) -> None:
    port = free_port()
    env = {
        **os.environ, "SENTINEL_EXPORT_DATABASE_URL": program_url(export.fixtures.url, EXPORTER), "SENTINEL_EXPORT_SECRETS": EXPORT_SECRET,
        "SENTINEL_EXPORT_ADDRESSES": "loopback", "SENTINEL_EXPORT_HEALTH_PORT": str(port),
    }  # fmt: skip
    wanted = export.fixtures.guard()["decision_event_id"]
    export.fixtures.run_housekeeping()
    command = [sys.executable, "-m", "sentinel.cli.main", "export"]
    with WarmProcess(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            eventually(lambda: wanted in export.receiver.ids or process.poll() is not None, within=30)
            ready = json.load(urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=60))
            figures = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60).read().decode()
        finally:
            process.send_signal(signal.SIGTERM)
            _, told = process.communicate(timeout=120)
    assert (wanted in export.receiver.ids, process.returncode) == (True, 0), told
    assert ready["status"] == "ready" and EXPORT_SECRET not in told
    assert {"sentinel_export_ready 1.0", "sentinel_export_dead_letters 0.0"} <= {*figures.splitlines()}


def test_a_sender_whose_database_only_reads_says_that_it_is_not_ready(export: Export) -> None:
    login = f"sender_{uuid.uuid4().hex[:8]}"
    url = make_login(export.fixtures.url, login, f"in role {EXPORTER}")
    export.fixtures.admin.execute(f"alter role {login} set default_transaction_read_only = on".encode())
    pool = Pool(with_role(url, EXPORTER), size=1)
    try:
        assert "sentinel_export_ready 0.0" in health_app(pool).test_client().get("/metrics").text.splitlines()
    finally:
        pool.close()
        export.fixtures.admin.execute(f"drop role {login}".encode())


class _Processes:
    def __init__(self) -> None:
        self.started: list[list[str]] = []

    def start(self, name: str, command: list[str], env: Any) -> None:
        self.started.append([name, *command[-2:]])


def test_the_demo_starts_the_sender_once_there_is_a_receiver(export: Export, monkeypatch: pytest.MonkeyPatch) -> None:
    fixtures, url = export.fixtures, program_url(export.fixtures.url, EXPORTER)
    disable_webhook(fixtures.console_pool, local_administrator(fixtures.tenant_id), export.endpoint_id)
    none, processes = DemoSender(_Processes(), {}, url), _Processes()  # type: ignore[arg-type]
    none.start_if_wanted()
    assert none._processes.started == []  # type: ignore[attr-defined]
    fixtures.admin.execute("update sentinel.event_endpoints set disabled_at = null, disabled_reason = null")
    there = DemoSender(processes, {}, url)  # type: ignore[arg-type]
    there.start_if_wanted()
    there.start_if_wanted()
    assert processes.started == [["export", "sentinel.cli.main", "export"]]
    monkeypatch.setenv("SENTINEL_EXPORT_MAIL_TO", "desk@shop.example")
    by_setting = DemoSender(_Processes(), {}, f"postgresql://nobody@127.0.0.1:9/{uuid.uuid4().hex}")  # type: ignore[arg-type]
    by_setting.start_if_wanted()
    assert len(by_setting._processes.started) == 1  # type: ignore[attr-defined]
