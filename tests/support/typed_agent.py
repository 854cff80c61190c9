"""An agent's program as mypy sees it on Python 3.10, the oldest that the client runs on: each call with what it must be given, and no more.

Nothing runs it; `make lint` checks its types.
"""

from __future__ import annotations

import uuid

from sentinel.client import AsyncClient, CheckQuestion, Client, GuardAnswer, GuardQuestion, Outcome, guarded

GIFT: GuardQuestion = {"action": "gift_card.issue", "params": {"amount": "1.00"}, "idempotency_key": "gift:1"}
LOOK: CheckQuestion = {"action": "gift_card.issue", "params": {"amount": "1.00"}}
DONE: Outcome = {"action": "gift_card.issue", "idempotency_key": "gift:1", "outcome": "success"}


def ask(client: Client) -> list[GuardAnswer]:
    """Synchronous."""
    with guarded(client, "gift_card.issue", idempotency_key="gift:3", wait_seconds=5) as permitted:
        waited = client.guard(**GIFT)
        answer = client.guard(action="gift_card.issue", params={}, idempotency_key="gift:2")
        client.start(answer, uuid.uuid4())
        client.report(**DONE)
        client.check(**LOOK)
        client.headroom(**LOOK)
        return [permitted, waited, answer]


async def ask_on_a_loop(client: AsyncClient) -> list[GuardAnswer]:
    """Asynchronous."""
    async with guarded(client, "gift_card.issue", idempotency_key="gift:3") as permitted:
        answer = await client.guard(action="gift_card.issue", params={}, idempotency_key="gift:2")
        await client.start(answer, uuid.uuid4())
        await client.report(**DONE)
        await client.check(**LOOK)
        await client.headroom(**LOOK)
        return [permitted, answer]
