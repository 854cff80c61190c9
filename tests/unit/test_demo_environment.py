"""What the demo's programs get of its environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from sentinel.demo.access import DemoAccess
from sentinel.demo.command import Ports, _environment
from sentinel.demo.database import PROGRAMS
from sentinel.platform.resources import policies_dir
from worker.orders.sources import SourcesFile

SECRET = "of-the-demo-s-shop-0123456789abcdef"


@pytest.mark.parametrize("form", ["ORDERS_DEMO_SECRET", "ORDERS_DEMO_SECRET_FILE"])
def test_the_secret_of_the_demo_s_shop_may_be_in_a_file(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The finding: the intake got both forms, and the demo did not start."""
    file = tmp_path / "secret"
    file.write_text(f"{SECRET}\n")
    monkeypatch.delenv("ORDERS_DEMO_SECRET", raising=False)
    monkeypatch.setenv(form, str(file) if form.endswith("_FILE") else SECRET)
    access = DemoAccess("01a222d6-0000-7000-8000-000000000000", "snt_live_agent", [])
    env = _environment(dict.fromkeys(PROGRAMS, "postgresql://db.example/demo"), tmp_path, access, Ports(1, 2, 3, 4))
    assert env["orders"]["ORDERS_DEMO_SECRET"] == SECRET
    assert "demo" not in SourcesFile(policies_dir() / "order_sources.yaml", env["orders"]).current().closed()
    others = [name for name in env if name != "orders" and {form, "ORDERS_DEMO_SECRET"} & env[name].keys()]
    assert others == []
