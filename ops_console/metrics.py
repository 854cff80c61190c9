"""What the console counts. Correct over several processes when PROMETHEUS_MULTIPROC_DIR is set before this is imported."""

from __future__ import annotations

from prometheus_client import Counter, Gauge

REQUESTS = Counter("console_requests", "Answers by route and status.", ["route", "status"])
SIGN_INS = Counter("console_sign_ins", "Sign-in attempts by result.", ["result"])
STEP_UPS = Counter("console_step_ups", "Proofs within a session by result.", ["result"])
RESOLVED = Counter("console_approvals_resolved", "People's votes on approvals by result.", ["result"])
ORDERS_RESOLVED = Counter("console_orders_resolved", "Analysts' decisions on orders by result.", ["result"])
STREAMS = Gauge("console_live_streams", "Viewers of the live stream.", multiprocess_mode="livesum")
POOL_IN_USE = Gauge("console_pool_in_use", "Database connections handed out.", ["pool"], multiprocess_mode="livesum")
