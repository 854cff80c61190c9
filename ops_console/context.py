"""What the views are handed: the databases, the public board's reader, and who minds the door."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ops_console.board.agents import PublicAgents
from ops_console.board.events import agent_status
from ops_console.board.figures import Counts
from ops_console.board.hub import Hub
from ops_console.settings import ConsoleSettings
from sentinel.services.known_devices import Devices
from sentinel.services.list_switches import SwitchFile
from sentinel.services.policy_book import PolicyBook
from sentinel.services.second_factor import Vault
from sentinel.services.sign_in import Doorkeeper, SessionTerms
from sentinel.store import feed
from sentinel.store.database import BOARD, CONSOLE, Pool, with_role
from sentinel.store.tenants import public_tenants

DEFAULT_PUBLIC_TENANT = "public-demo"
NOBODY = uuid.UUID(int=0)
_REMEMBER_TENANT_SECONDS = 5.0
_REMEMBER_BOARD_SECONDS = 0.5


class Remembered:
    """Answers kept for a moment, one asker at a time: many viewers ask the database as seldom as one."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: dict[Any, tuple[float, Any]] = {}

    def get(self, key: Any, ask: Callable[[], Any]) -> Any:
        """The kept answer to `key`, else `ask()`'s; what it raises is not kept."""
        with self._lock:
            asked_at = self._clock()
            kept = self._kept.get(key)
            if kept is None or asked_at - kept[0] >= self._seconds:
                kept = self._kept[key] = (asked_at, ask())
            return kept[1]


class Board:
    """The public board's data, read with the public role: the tenant shown, its feed and its agents."""

    def __init__(self, pool: Pool, wanted_tenant: str, agents: PublicAgents) -> None:
        self.pool = pool
        self.agents = agents
        self._wanted = wanted_tenant
        self._tenant = Remembered(_REMEMBER_TENANT_SECONDS)
        self._answers = Remembered(_REMEMBER_BOARD_SECONDS)
        self.counts = Counts(self._before, self._counted)

    def tenant(self) -> tuple[uuid.UUID, str]:
        """(id, label) of the public tenant; a nil id, under which there is nothing, where there is none or several."""
        found: tuple[uuid.UUID, str] = self._tenant.get("tenant", self._find_tenant)
        return found

    def _find_tenant(self) -> tuple[uuid.UUID, str]:
        known = [(one.tenant_id, one.label) for one in public_tenants(self.pool)]
        wanted = self._wanted or (DEFAULT_PUBLIC_TENANT if len(known) != 1 else known[0][1])
        named = [one for one in known if wanted in (one[1], str(one[0]))]
        return named[0] if len(named) == 1 else (NOBODY, DEFAULT_PUBLIC_TENANT)

    def newest(self, limit: int) -> list[feed.FeedRow]:
        """The latest public decisions, newest first."""
        rows: list[feed.FeedRow] = self._answers.get(
            limit, lambda: feed.newest(self.pool, self.tenant()[0], self.agents.ids, limit)
        )
        return rows

    def _before(self, moment: datetime) -> int:
        """The position before the first decision since `moment`."""
        newest = feed.head(self.pool, self.tenant()[0])
        first = feed.first_since(self.pool, self.tenant()[0], moment)
        return newest if first is None else first - 1

    def _counted(self, position: int, limit: int) -> list[feed.MinuteCount]:
        return feed.count_after(self.pool, self.tenant()[0], self.agents.ids, position, limit)

    def after(self, position: int, limit: int) -> list[feed.FeedRow]:
        """Public decisions behind a position, oldest first."""
        return feed.after(self.pool, self.tenant()[0], self.agents.ids, position, limit)

    def latest_by_agent(self) -> dict[str, feed.FeedRow | None]:
        """Each public agent's newest decision; named agents are there even when they decided nothing."""
        found: dict[str, feed.FeedRow | None] = self._answers.get("by agent", self._ask_latest)
        return found

    def halts(self) -> list[feed.PublicHalt]:
        """The halts in force over the public tenant or a part of it."""
        found: list[feed.PublicHalt] = self._answers.get("halts", lambda: feed.halts(self.pool, self.tenant()[0]))
        return found

    def statuses(self) -> dict[str, dict[str, Any]]:
        """Each public agent at a glance, by its name on the board."""
        halts = self.halts()
        return {
            self.agents.name(agent_id): agent_status(agent_id, row, halts)
            for agent_id, row in self.latest_by_agent().items()
        }

    def _ask_latest(self) -> dict[str, feed.FeedRow | None]:
        found: dict[str, feed.FeedRow | None] = {}
        for row in feed.newest(self.pool, self.tenant()[0], self.agents.ids, 200):
            found.setdefault(row.agent_id, row)
        for agent_id in self.agents.named:
            if agent_id not in found:
                found[agent_id] = feed.latest_of(self.pool, self.tenant()[0], agent_id)
        return found


@dataclass(frozen=True, slots=True)
class Context:
    """Handed to every route of the console. `pool` and `ledger` have the console's role, the board's pool the public one."""

    settings: ConsoleSettings
    pool: Pool
    ledger: Pool
    board: Board
    hub: Hub
    door: Doorkeeper
    switches: SwitchFile
    book: PolicyBook


def build_context(settings: ConsoleSettings, *, stopping: Callable[[], bool]) -> Context:
    """The parts of one process. Nothing connects before the first request."""
    pool = Pool(with_role(settings.database_url, CONSOLE, application_name="console"), size=settings.pool_size)
    ledger = pool
    if settings.ledger_url not in ("", settings.database_url):
        ledger = Pool(with_role(settings.ledger_url, CONSOLE, application_name="console"), size=settings.pool_size)
    board_url = with_role(settings.board_database_url or settings.database_url, BOARD, application_name="board")
    board = Board(Pool(board_url, size=settings.board_pool_size), settings.public_tenant, settings.board)
    hub = Hub(
        board.after, lambda most: feed.newest(board.pool, board.tenant()[0], board.agents.ids, most),
        read_status=lambda: {name: one["status"] for name, one in board.statuses().items()}, max_viewers=settings.max_streams,
        stopping=stopping,
    )  # fmt: skip
    terms = SessionTerms(settings.idle_seconds, settings.absolute_seconds, settings.step_up_seconds)
    door = Doorkeeper(terms, Vault(settings.second_factor_secrets), Devices(settings.second_factor_secrets))
    return Context(
        settings, pool, ledger, board, hub, door, SwitchFile(settings.policies_dir), PolicyBook(settings.policies_dir)
    )
