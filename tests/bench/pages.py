"""How soon each page of the console is painted with 100,000 ledger rows and 100,000 decisions: `python -m tests.bench.pages`.

An own PostgreSQL, one console process and a headless Chromium, all on this machine; the figure is the browser's own
`first-contentful-paint`, from the click to the first thing seen; beside it the part of it until the first byte. Each page is
opened several times in one tab with a warm cache, as an operator goes from page to page.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg

from sentinel.store.embedded import remove, running
from sentinel.store.migrate import migrate
from tests.browser.chromium import running_chromium
from tests.browser.conftest import sign_in
from tests.browser.place import Place, filled_place

WANTED_MS = 300.0
ROWS = 100_000
PAINT = """() => new Promise((done) => {
  const told = () => performance.getEntriesByName("first-contentful-paint")[0]?.startTime;
  if (told() !== undefined) return done(told());
  new PerformanceObserver(() => told() !== undefined && done(told())).observe({ type: "paint", buffered: true });
  setTimeout(() => done(null), 10000);
})"""
FILL = """
set session_replication_role = replica;
create function pg_temp.id_at(at timestamptz, n bigint) returns uuid language sql as
  $$ select (lpad(to_hex((extract(epoch from at) * 1000)::bigint), 12, '0') || '70008' || lpad(to_hex(n), 15, '0'))::uuid $$;
create temp table made as select n, at, pg_temp.id_at(at, n) as id,
  case when n % 10 < 7 then 'ALLOW' when n % 10 < 9 then 'DENY' else 'APPROVAL_REQUIRED' end as decision
  from (select n, now() - ({rows} - n) * interval '864 ms' as at from generate_series(1, {rows}) n) numbered;
insert into sentinel.operation_rows (tenant_id, operation_id, idempotency_key, principal_id, agent_id, action, resource, risk_class,
  digest, request, salt, amount_minor, currency, created_at)
  select '{tenant}', id, 'bench:' || n, '{tenant}', 'retail-refund-agent', 'refund.create', 'refund/bench_' || n, 'standard',
  sha256(''), '{{"params":{{"amount":{{"amount_minor":100,"currency":"USD"}}}}}}', sha256('salt'), 100 + n % 90000,
  'USD', at from made;
insert into sentinel.decision_terms (hash, policy_id, policy_version, policy_label, policy_digest)
  values (sha256('bench'), 'retail-refund', 'v', 'Retail Refund Policy v1', 'sha256:' || repeat('0', 64));
insert into sentinel.operation_states (tenant_id, operation_id, status, decision, reason_code, terms_id, decision_event_id, approval_id,
  started_at)
  select '{tenant}', id, case decision when 'ALLOW' then 'completed' when 'DENY' then 'denied' else 'pending' end, decision,
  'within_policy_limit', (select terms_id from sentinel.decision_terms where hash = sha256('bench')), id,
  case when decision = 'APPROVAL_REQUIRED' then id end, case when decision = 'ALLOW' then at end from made;
insert into sentinel.event_rows (tenant_id, event_id, kind, operation_id, agent_id, body, hash, occurred_at)
  select '{tenant}', id, 'decision', id, 'retail-refund-agent', '{{"action":"refund.create","agent_id":"retail-refund-agent",'
  || '"amount":{{"currency":"USD","value":126}},"decided_at":"2026-01-01T00:00:00.000000Z","decision":"' || decision
  || '","latency_ms":3,"policy_label":"Retail Refund Policy v1","proof_id":"pf_' || replace(id::text, '-', '')
  || '","reason_code":"within_policy_limit"}}', sha256(''), at from made;
insert into sentinel.approvals (tenant_id, approval_id, operation_id, principal_id, agent_id, action, resource, amount_minor,
  currency, digest, reasons, policy_digest, required_role, required_people, status, created_at, expires_at, decided_at, decided_by)
  select '{tenant}', id, id, '{tenant}', 'retail-refund-agent', 'refund.create', 'refund/bench_' || n, 100 + n % 90000, 'USD',
  'sha256:' || repeat('0', 64), array['amount_needs_approval'], 'sha256:' || repeat('0', 64), 'approver', 1,
  case when n > {rows} / 2 then 'pending' else 'approved' end, at, now() + interval '5 hours' + n * interval '1 ms',
  case when n <= {rows} / 2 then at end, case when n <= {rows} / 2 then 'x@demo.local' end
  from made where decision = 'APPROVAL_REQUIRED';
insert into refunds.ledger_entries (tenant_id, ledger_entry_id, refund_id, status, amount_minor, currency, account_ref, operation_id,
  approval_id, waiting_for, decision, reason_code, created_at, requested_at, last_error)
  select '{tenant}', 'bench_' || n, 'bench_refund_' || n, case when n % 1000 = 0 then 'ERROR' when decision = 'ALLOW' then 'EXECUTED'
  when decision = 'DENY' then 'DENIED' else 'APPROVAL_REQUIRED' end, 100 + n % 90000, (array['USD','EUR','GBP'])[1 + n % 3],
  'acct_' || n % 5000, id, case when decision = 'APPROVAL_REQUIRED' and n % 1000 <> 0 then id end,
  case when decision = 'APPROVAL_REQUIRED' and n % 1000 <> 0 then 'operator' end, decision, 'within_policy_limit', at, at,
  case when n % 1000 = 0 then 'no answer' end from made;
reset session_replication_role;
analyze
"""


@contextlib.contextmanager
def own_place(rows: int) -> Iterator[Place]:
    """A console on a database of its own with so many rows and decisions of a day."""
    parent = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path(tempfile.gettempdir())
    base = parent / f"sentinel-pages-{os.getpid()}"
    try:
        with running(base, own=True) as server:
            migrate(server.admin_url)
            with filled_place(server.admin_url) as place:
                with psycopg.connect(server.admin_url, autocommit=True) as connection:
                    for statement in FILL.format(tenant=place.fixtures.tenant_id, rows=rows).split(";\n"):
                        connection.execute(statement.encode())
                place.fixtures.publish()
                yield place
    finally:
        remove(base)
        shutil.rmtree(base, ignore_errors=True)


def measure(browser: Any, place: Place, times: int) -> dict[str, list[tuple[float, float]]]:
    """Milliseconds until the first paint and until the first byte, by page."""
    context = browser.new_context(base_url=place.url, viewport={"width": 1280, "height": 900})
    page = context.new_page()
    sign_in(page, place.operator("admin"))
    page.get_by_role("heading", name="Your account").wait_for()
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in place.paths}
    for number in range(times + 1):
        for name, path in place.paths.items():
            page.goto(path)
            painted = page.evaluate(PAINT)
            # The first round fills the browser's cache and the console's own.
            if number:
                first = page.evaluate("performance.getEntriesByType('navigation')[0].responseStart")
                found[name].append((float("inf") if painted is None else painted, first))
    context.close()
    return found


def main() -> None:
    """The command; fails when a page is slower than wanted."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.pages", description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--times", type=int, default=5)
    options = parser.parse_args()
    with own_place(options.rows) as place, running_chromium() as browser:
        found = measure(browser, place, options.times)
    print(
        f"first contentful paint with {options.rows:,} ledger rows and decisions; load {Path('/proc/loadavg').read_text().strip()}"
    )
    slow = []
    for name, values in found.items():
        paints = [paint for paint, _ in values]
        middle, first = statistics.median(paints), statistics.median(first for _, first in values)
        print(f"{name:14} {middle:6.0f} ms [{min(paints):.0f}–{max(paints):.0f}], first byte {first:.0f} ms")
        if middle > WANTED_MS:
            slow.append(name)
    if slow:
        sys.exit(f"slower than {WANTED_MS:.0f} ms: {', '.join(slow)}")


if __name__ == "__main__":
    main()
