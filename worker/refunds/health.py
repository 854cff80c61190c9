"""What the worker's /readyz asks: no row, no customer, no key."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sentinel.platform.http.readiness import database_checks
from sentinel.store.database import WORKER
from sentinel.store.safety import database_status
from worker.key_check import KeyCheck
from worker.refunds.ledger import Ledger


def readiness_of(ledger: Ledger, key: KeyCheck) -> Callable[[], Mapping[str, bool]]:
    """What /readyz asks: the database and its schema, and whether the authority takes the key as ours."""

    def checks() -> Mapping[str, bool]:
        fault = key.fault()
        standing = database_checks(lambda: database_status(ledger.pool, WORKER))
        return {**standing, "authority": fault is None or fault.answered, "key": fault is None}

    return checks
