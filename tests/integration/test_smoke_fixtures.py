"""The whole way in one process, as a first sign of life."""

from tests.support.fixtures import Fixtures, guard_body


def test_an_allowed_refund_goes_from_guard_to_captured(fixtures: Fixtures) -> None:
    body = guard_body(value=126)
    answer = fixtures.guard(body)
    assert (answer["decision"], answer["status"], answer["reason_code"]) == ("ALLOW", "allowed", "within_policy_limit")
    assert fixtures.start(body, answer).get_json()["started"] is True
    assert fixtures.report(body).get_json()["received"] is True
    fixtures.run_housekeeping()
    assert (
        fixtures.one("select sum(captured_minor) from sentinel.usage where limit_key like '%%account_day%%'") == 12600
    )
    assert fixtures.broken_invariants() == []


def test_a_report_is_not_lost_for_what_an_exception_printed(fixtures: Fixtures) -> None:
    body = guard_body()
    answer = fixtures.guard(body)
    fixtures.start(body, answer)
    told = "\x1b[31mboom\x1b[0m\x00 \u202e" + "x" * 9000
    assert fixtures.report(body, "error", error=told).get_json()["received"] is True
    assert fixtures.report(body, "error", error=told).get_json()["duplicate"] is True
