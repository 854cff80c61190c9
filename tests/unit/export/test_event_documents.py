"""docs/events.md says of every type exactly the fields that it may carry."""

from __future__ import annotations

import dataclasses
import re
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

from sentinel.authority.webhooks import EVENT_TYPES
from sentinel.export.cloud_events import FIELDS, IN_DOUBT, REQUESTED, EventMessage, FeedEvent, messages_of

PAGE = Path(__file__).parents[3] / "docs" / "events.md"
ALWAYS = {"event", "operation_id", "hash"}
NOW = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)
EVENT = FeedEvent(
    UUID(int=7), 3, UUID(int=9), "decision", UUID(int=8), '{"decision":"APPROVAL_REQUIRED"}', "sha256:aa", "sha256:bb", NOW, False,
    UUID(int=6), "an-agent", "refund.create", 12650, "USD", ["limit_exceeded"], "approver", 2, NOW, True, "retail-refund", None,
)  # fmt: skip


def documented() -> dict[str, set[str]]:
    """Fields by type, as the page's table has them."""
    page = PAGE.read_text().partition("## Types and fields")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([a-z_.]+)` \| [^|]+ \| ([^|]+) \|$", page, re.MULTILINE)
    return {name: set(re.findall(r"`([a-z_]+)`", fields)) for name, fields in rows}


def carried() -> dict[str, set[str]]:
    """Fields by type, as the code has them."""
    found: dict[str, set[str]] = {name: set() for name in EVENT_TYPES}
    for made in FIELDS.values():
        for name, fixed, fields in made:
            found[name] |= set(fixed) | set(fields)
    found[REQUESTED] |= set(messages_of(EVENT, (REQUESTED,))[0].data) - ALWAYS
    found[IN_DOUBT] |= {"reason"}
    return found


def test_the_page_names_every_field_of_every_type_and_no_other() -> None:
    told = documented()
    assert told.pop("test") == {"endpoint_id"}
    assert told == carried()


def test_a_message_is_the_same_bytes_at_every_try_and_has_no_nulls() -> None:
    first, second = messages_of(EVENT), messages_of(EVENT)
    assert [one.body() for one in first] == [one.body() for one in second] and len(first) == 2
    assert all(b"null" not in one.body() for one in first)
    assert len({one.id for one in first}) == 2 and not any("." in one.id for one in first)
    assert isinstance(first[0], EventMessage) and first[0].body().startswith(b'{"specversion":"1.0"')


def test_an_error_that_a_person_had_resolved_before_is_no_new_doubt() -> None:
    reported = dataclasses.replace(EVENT, kind="outcome", body='{"outcome":"error"}', approval_id=None)
    assert [one.type for one in messages_of(reported)] == ["outcome", "in_doubt"]
    assert [one.type for one in messages_of(dataclasses.replace(reported, resolved_before=True))] == ["outcome"]


def test_an_outcome_that_was_recorded_with_an_empty_report_id_has_none() -> None:
    told = '{"action":"refund.create","outcome":"success","report_id":"%s"}'
    for report_id, names in (("", False), (str(UUID(int=5)), True)):
        event = dataclasses.replace(EVENT, kind="outcome", body=told % report_id, approval_id=None)
        (message,) = messages_of(event)
        assert ("report_id" in message.data) is names and message.data["outcome"] == "success"


def test_a_refusal_and_a_doubt_name_the_agent_of_their_event_where_their_body_does_not() -> None:
    for kind in ("refused", "in_doubt", "in_doubt_resolved"):
        (message,) = messages_of(dataclasses.replace(EVENT, kind=kind, body="{}", approval_id=None))
        assert message.data["agent_id"] == "an-agent"
