"""How old, how late or over something is, pages say by the database's clock: the console's own may differ."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from sentinel.store.ids import new_id
from tests.integration.console.test_page_policies import words
from tests.support.orders_console_fixtures import queued


class Ahead(datetime):
    """The clock of a console whose machine is 400 days ahead."""

    @classmethod
    def now(cls, tz: Any = None) -> Any:
        return super().now(tz) + timedelta(days=400)


def test_on_a_machine_whose_clock_is_ahead_nothing_is_late_or_over(
    fixtures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The finding: orders that were due in a day were "overdue", and the oldest approval of the overview was as old as the difference."""
    for page in ("account", "orders", "overview"):
        monkeypatch.setattr(f"ops_console.pages.{page}.datetime", Ahead, raising=False)
    order_id, ann = queued(fixtures), fixtures.browser("ann", proved=True)
    made = ann.submit("/ops/account/tokens", token_id=str(new_id()), label="script", expires_days="30")
    assert made.status_code < 400, made.text
    for address in ("/ops/orders", "/ops/orders-now", f"/ops/orders/demo/{order_id}", "/ops", "/ops/overview/now"):
        told = words(ann.get(address))
        assert "overdue" not in told and "400 d" not in told and "399 d" not in told, address
    assert "in 0.0 s" not in words(ann.get("/ops"))
    account = ann.get("/ops/account").text
    assert "script" in account and 'class="chip expired"' not in account
