"""Notices to people about pending approvals: what is asked, and a link to the card. A notice cannot approve anything.

Decisions are made only on the card in the console, by a person who is signed in there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sentinel.authority.reasons import reason_text
from sentinel.core.money import parse_money
from sentinel.core.wording import counted, named
from sentinel.export.cloud_events import REQUESTED, EventMessage, FeedEvent, messages_of
from sentinel.export.deliveries import Claim, Resend
from sentinel.platform.outbound.mail import Mail, Mailer
from sentinel.platform.outbound.slack import SlackWebhook, slack_text


def notice_lines(data: Mapping[str, Any], console_url: str) -> list[str]:
    """Return a notice's lines: what is asked, by which agent, why, who must decide until when, and a link to the card.

    They contain only identifiers, amounts and our own sentences. The only link is ours: what agents choose, their own
    name and what matches a pattern's `*` in an action, is written so that it becomes no link.
    """
    amount = data.get("amount")
    what = f"{named(str(data.get('action')))} by {named(str(data.get('agent_id')))}"
    what += f", {parse_money(**amount)}" if amount else ""
    people = data.get("required_people", 1)
    return [
        f"Approval needed: {what}",
        f"Why: {' '.join(map(reason_text, data.get('reasons', ())))}",
        f"Needs: {counted(people, 'person', 'people')} with the role {data.get('required_role')}, until {_minute(data.get('expires_at'))}",
        f"{console_url.rstrip('/')}/ops/approvals/{data['approval_id']}",
    ]


def _minute(moment: Any) -> str:
    """Return an event's time as people read it; a value that is no time is returned unchanged, as text."""
    try:
        return datetime.fromisoformat(moment).astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (TypeError, ValueError):
        return str(moment)


@dataclass(frozen=True, slots=True)
class SlackNotices:
    """The receiver of notices that is a Slack-compatible channel."""

    webhook: SlackWebhook
    console_url: str
    at_once: int = 1
    needs_present_state: bool = True

    def send(self, endpoint: Claim | Resend, events: Sequence[FeedEvent]) -> str | None:
        """Post one message per approval that people can still decide."""
        for message in _requested(events):
            first, *rest = (slack_text(line) for line in notice_lines(message.data, self.console_url))
            error = self.webhook.post("\n".join([f"*{first}*", *rest]))
            if error is not None:
                return error
        return None


@dataclass(frozen=True, slots=True)
class MailNotices:
    """The receiver of notices that is one mail address, for all of a tenant's approvals."""

    mailer: Mailer
    to: str
    console_url: str
    at_once: int = 1
    needs_present_state: bool = True

    def send(self, endpoint: Claim | Resend, events: Sequence[FeedEvent]) -> str | None:
        """Send one mail per approval that people can still decide."""
        for message in _requested(events):
            first, *rest = notice_lines(message.data, self.console_url)
            mail = Mail(message.id.replace(":", "."), self.to, first, "\n".join([first, *rest]) + "\n")
            failure = self.mailer.send(mail)
            if failure is not None:
                return failure.kind
        return None


def _requested(events: Sequence[FeedEvent]) -> list[EventMessage]:
    """Return the approval requests that people can still decide: after an outage the others are of no use."""
    return [message for event in events if event.waits for message in messages_of(event, (REQUESTED,))]
