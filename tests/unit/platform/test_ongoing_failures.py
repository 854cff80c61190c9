"""Failures that go on: in the log when they begin, once a minute after that, and when they end."""

from __future__ import annotations

import pytest
import structlog
from structlog.testing import capture_logs

from sentinel.core.errors import EngineUnavailable
from sentinel.platform.ongoing_failures import AGAIN_SECONDS, STEADY_SECONDS, OngoingFailures, raised_at

ATTEMPTS_A_MINUTE = 600


@pytest.fixture
def clock() -> list[float]:
    return [1000.0]


@pytest.fixture
def failures(clock: list[float]) -> OngoingFailures:
    return OngoingFailures(now=lambda: clock[0])


def test_a_failure_that_goes_on_is_logged_once_a_minute(failures: OngoingFailures, clock: list[float]) -> None:
    logged = 0
    for _ in range(3 * ATTEMPTS_A_MINUTE):
        logged += failures.should_log("lane", "away")
        clock[0] += AGAIN_SECONDS / ATTEMPTS_A_MINUTE
    assert logged == 3


def test_two_causes_that_take_turns_are_each_logged_once_a_minute(failures: OngoingFailures) -> None:
    said = [failures.should_log("lane", cause) for _ in range(5) for cause in ("away", "starting up")]
    assert said == [True, True] + [False] * 8


def test_what_fails_for_the_same_cause_is_logged_with_the_first(failures: OngoingFailures, clock: list[float]) -> None:
    assert [failures.should_log(lane, "away") for lane in range(4)] == [True, False, False, False]
    clock[0] += STEADY_SECONDS
    assert [failures.recovered(lane) for lane in range(4)] == [False, False, False, True], "the last one ends it"
    assert not failures.recovered(0), "it ended before"
    assert failures.should_log(0, "away"), "the next outage is logged at once"


def test_what_fails_and_succeeds_by_turns_is_logged_as_one_failure(
    failures: OngoingFailures, clock: list[float]
) -> None:
    said = []
    for _ in range(10):
        said.append((failures.should_log("lane", "away"), failures.recovered("lane")))
        clock[0] += STEADY_SECONDS / 2
    assert said == [(True, False)] + [(False, False)] * 9
    clock[0] += STEADY_SECONDS
    assert failures.recovered("lane")


def fail(error: Exception) -> None:
    raise error


def test_an_expected_error_is_logged_with_its_cause_and_any_other_with_its_traceback(
    failures: OngoingFailures, clock: list[float]
) -> None:
    log = structlog.get_logger("test")
    with capture_logs() as lines:
        for error in (
            EngineUnavailable("away"),
            EngineUnavailable("away"),
            KeyError("of a customer"),
            KeyError("of another"),
        ):
            with failures.logged(log, "sending", 1, receiver="r"):
                fail(error)
        for _ in range(3):
            with failures.logged(log, "sending", 1):
                clock[0] += STEADY_SECONDS / 2
    assert [(line["event"], line["log_level"]) for line in lines] == [
        ("sending_postponed", "warning"), ("sending_failed", "error"), ("sending_resumed", "info"),
    ]  # fmt: skip
    assert lines[0]["cause"] == "away" and lines[1]["exc_info"] and lines[1]["receiver"] == "r"


def test_which_errors_explain_themselves_is_said_by_who_asks() -> None:
    with capture_logs() as lines, OngoingFailures(LookupError).logged(structlog.get_logger(), "task", "t"):
        fail(KeyError("k"))
    assert [line["event"] for line in lines] == ["task_postponed"]


def test_where_an_error_was_raised_does_not_quote_it() -> None:
    with pytest.raises(KeyError) as raised:
        fail(KeyError("of a customer"))
    assert raised_at(raised.value).startswith("KeyError in test_ongoing_failures.py:")
