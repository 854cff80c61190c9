"""What every view is given: the database pools, the public board's reader, and the authenticator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from ops_console.accounts.known_devices import Devices
from ops_console.accounts.sign_in import Authenticator, SessionTerms
from ops_console.accounts.totp import Vault
from ops_console.audience import Audience
from ops_console.board.hub import Hub
from ops_console.board.reader import Board
from ops_console.settings import ConsoleSettings, Login
from sentinel.authority.policy_inspector import PolicyInspector
from sentinel.authority.public_ids import load_public_id_generators
from sentinel.authority.switches import SwitchFile
from sentinel.core.public_ids import PublicIdGenerator
from sentinel.store.database import BOARD, Pool, with_role


@dataclass(frozen=True, slots=True)
class ConsoleContext:
    """Passed to every route of the console. `pool` and `ledger` connect with the role of `login`, the board with its
    own.

    `public_ids()` returns the generator of the identifiers on public pages.
    """

    settings: ConsoleSettings
    login: Login
    pool: Pool
    ledger: Pool
    board: Board
    hub: Hub
    authenticator: Authenticator
    switches: SwitchFile
    inspector: PolicyInspector
    public_ids: Callable[[], PublicIdGenerator]


def build_context(settings: ConsoleSettings, audience: Audience, *, stopping: Callable[[], bool]) -> ConsoleContext:
    """Build the parts of one process. No database connection is opened before the first request."""
    login = settings.login_of(audience)
    pool = Pool(with_role(login.url, login.role, application_name=login.name), size=login.connections)
    ledger = pool
    if login.ledger_url:
        ledger = Pool(with_role(login.ledger_url, login.role, application_name=login.name), size=login.connections)
    inspector = PolicyInspector(settings.policies_dir)
    ids = cache(lambda: load_public_id_generators(pool, settings.public_id_secrets)[0])
    board_url = with_role(settings.board_database_url or login.url, BOARD, application_name="board")
    board = Board(
        Pool(board_url, size=settings.board_pool_size), settings.public_tenant, settings.board, ids=ids,
        actions_of=lambda digest: inspector.actions_of(pool, digest),
    )  # fmt: skip
    hub = Hub(
        board.after, board.ask_newest, read_status=lambda: {one.name: one.status for one in board.agents()},
        max_viewers=settings.max_streams, most_of_address=settings.board_max_connections_per_address, stopping=stopping,
    )  # fmt: skip
    terms = SessionTerms(settings.idle_seconds, settings.absolute_seconds, settings.step_up_seconds)
    authenticator = Authenticator(terms, Vault(settings.second_factor_secrets), Devices(settings.second_factor_secrets))
    return ConsoleContext(
        settings, login, pool, ledger, board, hub, authenticator, SwitchFile(settings.policies_dir), inspector, ids
    )
