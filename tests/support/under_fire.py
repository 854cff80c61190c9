"""A shop's programs as processes that a test kills and starts again, the settlement system outside, and who works there meanwhile."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg

from sentinel.core.errors import SentinelError
from sentinel.store.database import WORKER
from sentinel.store.embedded import Embedded
from tests.acceptance.ledgers import QUICK
from tests.support.effects_server import EffectsServer
from tests.support.fixtures import SECRET, Fixtures
from tests.support.killed import kill_with_children
from tests.support.logins import program_url
from tests.support.order_fixtures import IntakeProcess, intake_process
from tests.support.ports import listens
from tests.support.recording_server import problem
from tests.support.roomy import roomy_policies
from tests.support.scripted_server import Asked
from tests.support.served_programs import clean_env, end, eventually, start_serve
from tests.support.warm_process import WarmProcess
from worker.refunds.ledger import LedgerUnavailable

PROGRAMS = ("worker", "worker", "authority", "intake", "postgres")
"""What a kill meets, as often as it stands here."""

# A call counts as under way for six seconds and not for thirty, so that a test can wait for it; the till answers in two.
_WORKER = (
    "from worker.settlement import saga; saga.WORKED_ON_SECONDS = 5.0\n"
    "from worker.retail_refund_agent import main; main(['--loop'])"
)
_SETTINGS = {
    **QUICK, "WORKER_MAX_ATTEMPTS": "4", "WORKER_BACKOFF_MAX_SECONDS": "0.8", "WORKER_ACT_SECONDS": "4",
    "WORKER_SETTLEMENT_TIMEOUT_SECONDS": "1", "WORKER_PRICE_DIFFERENCE_KEY": "k",
}  # fmt: skip


def outside_policies(folder: Path) -> Path:
    """The shipped policies without totals and breakers, where the shop's refunds are settled by a system outside."""
    made = roomy_policies(folder)
    routes = made / "routes.yaml"
    text = routes.read_text()
    assert text.count("settles_to: simulated_refund") == 1
    routes.write_text(text.replace("settles_to: simulated_refund", "settles_to: price_difference"))
    return made


class Till(EffectsServer):
    """The settlement system: it outlives everything, and knows what was really paid.

    `fates`, by entry: "refuses" it for good, "lies" (does it and says it refused), "loses" its first answer, is "late" once.
    """

    def __init__(self, fates: dict[str, str]) -> None:
        super().__init__()
        self.fates, self.seen = fates, set[str]()

    def act(self, asked: Asked) -> None:
        if asked.method != "POST":
            return super().act(asked)
        entry = asked.json["ledger_entry_id"]
        fate, first = self.fates.get(entry), entry not in self.seen
        self.seen.add(entry)
        if fate == "refuses":
            return problem(422, "account closed")(asked)
        if fate == "late" and first:
            asked.stop.wait(1.5)
        if fate == "lies" or (fate == "loses" and first):
            self.do(asked)
            return problem(422)(asked) if fate == "lies" else asked.reset()
        return super().act(asked)

    def paid(self) -> list[tuple[str, str]]:
        """(entry, reference) of everything that was paid."""
        with self.lock:
            return sorted({(body["ledger_entry_id"], body["reference"]) for body in self.bodies})


class Place:
    """The programs of a shop, each of which may die and comes back."""

    def __init__(self, fixtures: Fixtures, victim: Embedded, till: Till, policies: Path, folder: Path) -> None:
        self.fixtures, self.victim, self.till, self.policies, self.folder = fixtures, victim, till, policies, folder
        self.killed: Counter[str] = Counter()
        self.ended: Counter[str] = (
            Counter()
        )  # by itself: a worker that is started while the database is away says so and ends
        self.stack = contextlib.ExitStack()
        self.workers: list[subprocess.Popen[str]] = []
        self.authority: subprocess.Popen[str] | None = None
        self.port = 0

    def open(self) -> None:
        """Start everything."""
        self._start_authority()
        self.workers = [self._start_worker() for _ in range(2)]
        self.intake = self._start_intake()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _start_authority(self) -> None:
        again = {"SENTINEL_PORT": str(self.port)} if self.port else {}
        self.authority, self.port, _, _ = start_serve(
            self.fixtures.url, self.folder, from_nothing=False, SENTINEL_PROCESSES="1", SENTINEL_SECRET_KEYS=SECRET,
            SENTINEL_POLICIES_DIR=str(self.policies), SENTINEL_REPORT_DEADLINE_SECONDS="10", **again,
        )  # fmt: skip

    def _start_worker(self) -> subprocess.Popen[str]:
        env = clean_env(
            SENTINEL_URL=self.url, WORKER_DATABASE_URL=program_url(self.fixtures.url, WORKER), SENTINEL_REFUND_AGENT_API_KEY=self.fixtures.key,
            SENTINEL_TENANT_ID=str(self.fixtures.tenant_id), SENTINEL_POLICIES_DIR=str(self.policies),
            WORKER_PRICE_DIFFERENCE_URL=self.till.url, **_SETTINGS,
        )  # fmt: skip
        with (self.folder / "worker.log").open("ab") as log:
            return WarmProcess(
                [sys.executable, "-c", _WORKER],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                env=env,
                text=True,
            )

    def _start_intake(self) -> IntakeProcess:
        key = self.fixtures.new_key(agent_id="order-review")
        return self.stack.enter_context(
            intake_process(
                self.fixtures,
                self.url,
                key,
                within=60,
                SENTINEL_POLICIES_DIR=str(self.policies),
                SENTINEL_ORDERS_AUTHORITY_TIMEOUT_SECONDS="5",
            )
        )

    def kill(self, what: str, dice: random.Random) -> None:
        """Kill it with -9, and start it again."""
        self.killed[what] += 1
        if what == "postgres":
            self.victim.kill()
            time.sleep(dice.uniform(0, 0.4))
            self.victim.start()
        elif what == "authority":
            self._kill_authority()
            self._start_authority()
        elif what == "worker":
            number = dice.randrange(len(self.workers))
            _kill(self.workers[number])
            self.workers[number] = self._start_worker()
        else:
            _kill(self.intake.process)
            self.intake = self._start_intake()

    def mend(self) -> None:
        """What a supervisor does: start again what ended by itself. The authority does not."""
        assert self.authority is not None and self.authority.poll() is None, "the authority ended by itself"
        for number, worker in enumerate(self.workers):
            if worker.poll() is not None:
                self.ended["worker"] += 1
                self.workers[number] = self._start_worker()
        if self.intake.process.poll() is not None:
            self.ended["intake"] += 1
            self.intake = self._start_intake()

    def _kill_authority(self) -> None:
        assert self.authority is not None
        kill_with_children(self.authority)
        # A killed child has its listening socket until the kernel has taken it apart, which on a busy machine takes a while.
        assert eventually(lambda: not listens(self.port), within=30)

    def close(self) -> None:
        """End everything that was started, however far the start came."""
        for worker in self.workers:
            _kill(worker)
        self.stack.close()
        if self.authority is not None:
            end(self.authority)


def _kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait(60)


@contextlib.contextmanager
def open_place(fixtures: Fixtures, victim: Embedded, till: Till, policies: Path, folder: Path) -> Iterator[Place]:
    """A place whose programs run inside the block and are ended however it ends, also where a start failed."""
    place = Place(fixtures, victim, till, policies, folder)
    try:
        place.open()
        yield place
    finally:
        place.close()


class Busy:
    """Works again and again until it is told to stop, whatever is dead at the moment. A fault of the test itself is kept."""

    def __init__(self, work: Callable[[], None], every: float = 0.15) -> None:
        self._work, self._every = work, every
        self._over = threading.Event()
        self.fault: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(self._every):
            try:
                self._work()
            except (psycopg.Error, SentinelError, LedgerUnavailable, OSError):
                continue
            except BaseException as error:
                self.fault = error
                return

    def stop(self) -> None:
        """No more; raises what the work itself did wrong."""
        self._over.set()
        self._thread.join(60)
        if self.fault is not None:
            raise self.fault


class LastingReader:
    """Reads a tenant's rows as administrator over one session, and over another once the server has died."""

    def __init__(self, url: str, tenant_id: uuid.UUID) -> None:
        self._url, self._tenant_id = url, tenant_id
        self._connection: psycopg.Connection[Any] | None = None
        self._lock = threading.Lock()

    def fetch(self, query: str) -> list[Any]:
        """Rows of a query with the tenant as its only parameter."""
        with self._lock:
            if self._connection is not None:
                with contextlib.suppress(psycopg.OperationalError):
                    return self._rows(self._connection, query)
                self._connection.close()
            self._connection = psycopg.connect(self._url, autocommit=True)
            return self._rows(self._connection, query)

    def close(self) -> None:
        """End the session."""
        if self._connection is not None:
            self._connection.close()

    def _rows(self, connection: psycopg.Connection[Any], query: str) -> list[Any]:
        return connection.execute(query.encode(), {"tenant_id": self._tenant_id}).fetchall()


def fetch(url: str, query: str, tenant_id: uuid.UUID) -> list[Any]:
    """Rows of a query with the tenant as its only parameter, over a connection of its own."""
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(query.encode(), {"tenant_id": tenant_id}).fetchall()
