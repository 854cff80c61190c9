"""A sender in this process on a test's database, with a receiver on loopback."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sentinel.authority.actor import local_administrator
from sentinel.authority.webhooks import add_webhook
from sentinel.export.build import make_sender
from sentinel.export.sender import EventSender
from sentinel.export.settings import ExportSettings
from sentinel.export.signing_secrets import SigningSecrets
from sentinel.store.database import EXPORTER, Pool, with_role
from tests.support.event_receiver import EventReceiver
from tests.support.fixtures import Fixtures

EXPORT_SECRET = "only-for-tests-of-export-0123456789abc"


@dataclass
class Export:
    """A sender without pauses, its settings, and one webhook at `receiver`."""

    fixtures: Fixtures
    settings: ExportSettings
    pool: Pool
    sender: EventSender
    receiver: EventReceiver
    endpoint_id: uuid.UUID

    def add(self, receiver: EventReceiver, *types: str) -> uuid.UUID:
        """Another webhook, whose receiver knows its secret."""
        actor = local_administrator(self.fixtures.tenant_id)
        made = add_webhook(self.fixtures.console_pool, actor, receiver.url, types)
        receiver.secrets.append(self.secret_of(made))
        return made

    def secret_of(self, endpoint_id: uuid.UUID, number: int = 1) -> str:
        """A webhook's signing secret."""
        return SigningSecrets(self.settings.secrets).shown(endpoint_id, number)

    def send(self) -> None:
        """Give events their positions, and send until there is nothing to do."""
        self.fixtures.run_housekeeping()
        while self.sender.round():
            pass

    def due_now(self) -> None:
        """The pause after a failure is over."""
        self.fixtures.admin.execute(
            "update sentinel.event_endpoints set next_attempt_at = clock_timestamp(), lease_until = clock_timestamp()"
        )

    def let_hours_pass(self, hours: int) -> None:
        """What happened and failed until now did so this much earlier."""
        self.fixtures.admin.execute("set session_replication_role = replica")
        self.fixtures.admin.execute(
            "update sentinel.event_rows set occurred_at = occurred_at - make_interval(hours => %s)", [hours]
        )
        self.fixtures.admin.execute("set session_replication_role = origin")
        self.fixtures.admin.execute(
            "update sentinel.event_endpoints set first_failed_at = first_failed_at - make_interval(hours => %s)",
            [hours],
        )

    def row(self, columns: str, endpoint_id: uuid.UUID | None = None) -> Any:
        """Columns of a webhook's row."""
        asked = f"select {columns} from sentinel.event_endpoints where endpoint_id = %s"
        return self.fixtures.admin.execute(asked.encode(), [endpoint_id or self.endpoint_id]).fetchone()


@contextmanager
def exporting(fixtures: Fixtures, **over: Any) -> Iterator[Export]:
    """A sender, and a webhook whose receiver takes everything."""
    settings = dataclasses.replace(
        ExportSettings(database_url=fixtures.url, secrets=(EXPORT_SECRET,), addresses="loopback", timeout_seconds=30.0), **over
    )  # fmt: skip
    pool = Pool(with_role(fixtures.url, EXPORTER), size=4)
    receiver = EventReceiver()
    try:
        with receiver.running():
            made = Export(fixtures, settings, pool, make_sender(settings, pool), receiver, uuid.uuid4())
            fixtures.run_housekeeping()
            made.endpoint_id = made.add(receiver)
            made.send()
            receiver.taken.clear()
            receiver.http.asked.clear()
            yield made
    finally:
        pool.close()
