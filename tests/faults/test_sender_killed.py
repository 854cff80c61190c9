"""kill -9 of the sender of events between any two steps: nothing is lost, and what comes twice has the same id."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.support.event_receiver import answers
from tests.support.export_fixtures import EXPORT_SECRET, Export, exporting
from tests.support.fixtures import Fixtures, guard_body
from tests.support.warm_process import WarmProcess

EVENTS = 2


@pytest.fixture
def export(fixtures: Fixtures) -> Iterator[Export]:
    with exporting(fixtures) as made:
        yield made


def run_sender(export: Export, fatal: int) -> int:
    env = {
        **os.environ, "SENTINEL_EXPORT_DATABASE_URL": export.settings.database_url, "SENTINEL_EXPORT_SECRETS": EXPORT_SECRET,
        "SENTINEL_EXPORT_ADDRESSES": "loopback", "SENTINEL_EXPORT_TIMEOUT_SECONDS": "30",
    }  # fmt: skip
    command = [sys.executable, "-m", "tests.support.killed_sender", str(fatal)]
    with WarmProcess(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        _, told = process.communicate(timeout=120)
    assert process.returncode in (0, -signal.SIGKILL), told
    return process.returncode


def make_events(export: Export) -> list[str]:
    """Decisions and starts; their ids in the feed's order."""
    for _ in range(EVENTS // 2):
        body = guard_body()
        export.fixtures.start(body, export.fixtures.guard(body))
    export.fixtures.run_housekeeping()
    return [
        str(event_id) for (event_id,) in export.fixtures.admin.execute(
            "select event_id from sentinel.feed where tenant_id = %s order by position desc limit %s",
            [export.fixtures.tenant_id, EVENTS]).fetchall()
    ][::-1]  # fmt: skip


def without_repeats(ids: list[str]) -> list[str]:
    return list(dict.fromkeys(ids))


def test_a_sender_killed_between_any_two_steps_loses_nothing_and_keeps_the_order(export: Export) -> None:
    repeats, killed, fatal = 0, 0, 0
    while True:
        fatal += 1
        wanted = make_events(export)
        export.receiver.taken.clear()
        code = run_sender(export, fatal)
        before = len(export.receiver.taken)
        if code == 0:
            break
        assert code == -signal.SIGKILL, fatal
        killed += 1
        export.due_now()  # its lease is over
        export.send()
        assert without_repeats(export.receiver.ids) == wanted, f"killed at step {fatal}, after {before} were taken"
        repeats += len(export.receiver.ids) - EVENTS
    assert export.receiver.ids == wanted, "a sender that nobody kills sends each once"
    # Of each event, the step between the receiver's answer and the cursor is where it is sent again.
    assert killed >= 5 * EVENTS, killed
    assert EVENTS <= repeats <= 2 * EVENTS, repeats


def test_a_sender_killed_while_it_gives_up_or_sends_again_loses_nothing(export: Export) -> None:
    endpoint, letters = export.endpoint_id, export.fixtures
    given_up, fatal = 0, 0
    while True:
        fatal += 1
        (wanted, *_) = make_events(export)
        export.receiver.taken.clear()
        # The first was failing for a day: one more failure makes it a dead letter, the others are taken.
        letters.admin.execute(
            "update sentinel.event_endpoints set attempts = 9, first_failed_at = clock_timestamp() where endpoint_id = %s", [endpoint]
        )  # fmt: skip
        export.let_hours_pass(24)
        export.receiver.faults[:] = [answers(500)]
        code = run_sender(export, fatal)
        export.due_now()
        export.receiver.faults.clear()
        export.send()
        found = letters.one("select count(*) from sentinel.dead_letters where delivered_at is null")
        assert (wanted in export.receiver.ids) != bool(found), f"killed at step {fatal}: one of the two"
        given_up += bool(found)
        letters.admin.execute("update sentinel.dead_letters set resend_asked_at = clock_timestamp(), resend_asked_by = 'test' where delivered_at is null")  # fmt: skip
        code_again = run_sender(export, fatal)
        letters.admin.execute("update sentinel.dead_letters set lease_until = clock_timestamp()")
        export.send()
        assert wanted in export.receiver.ids
        assert letters.one("select count(*) from sentinel.dead_letters where delivered_at is null") == 0
        if code == code_again == 0:
            break
    # Before and after each of six steps: a look for dead letters, a claim, two looks for events, a call, giving up.
    assert given_up > 0 and fatal > 12, (given_up, fatal)
