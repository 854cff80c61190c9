"""The rate limit per key over real HTTP: exact over both processes of an authority, and one key's debt is its own."""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from tests.acceptance.conftest import NewDatabase
from tests.acceptance.contract import problem
from tests.acceptance.test_approval_streams import Listener
from tests.support.fixtures import add_tenant, unique
from tests.support.served_programs import served_on

BURST = 25
pytestmark = pytest.mark.slow


def test_a_burst_admits_exactly_what_it_says_over_all_processes(new_database: NewDatabase, tmp_path: Path) -> None:
    url = new_database()
    tenant_id, key, _ = add_tenant(url, unique("rate").replace("_", "-"))
    slow = {"SENTINEL_RATE_PER_SECOND": "1", "SENTINEL_RATE_BURST": str(BURST)}
    with served_on(url, tmp_path, tenant_id=str(tenant_id), key=key, **slow) as served:
        other = served.cli_json("keys", "create", "--tenant", served.tenant_id)["key"]
        began = time.monotonic()
        with ThreadPoolExecutor(16) as pool:
            replies = list(pool.map(lambda _: served.get("heartbeat?agent_id=a"), range(BURST * 3)))
        counted = Counter(reply.status for reply in replies)
        # One per second is earned back meanwhile.
        assert BURST <= counted[200] <= BURST + 1 + (time.monotonic() - began), counted
        assert counted[200] + counted[429] == len(replies)
        refused = next(reply for reply in replies if reply.status == 429)
        problem(refused, 429, "rate-limited")
        assert int(refused.headers["retry-after"]) >= 1
        assert served.get("heartbeat?agent_id=a", key=other).status == 200
        # After a 4xx the released clients listen no more.
        while served.get("heartbeat?agent_id=a").status == 200:
            pass
        with closing(Listener(served.port, key)) as listener:
            assert listener.status == 200 and b"CONNECTED" in listener.got, listener.got
        pids = Path(f"/proc/{served.process.pid}/task/{served.process.pid}/children").read_text().split()
        assert len(pids) >= 2
