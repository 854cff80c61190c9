"""What `sentinel demo` prints when it is ready is there to be copied: nothing of it is cut, however narrow the terminal is."""

from __future__ import annotations

import pytest

from sentinel.demo.orders import DemoOrderSource
from sentinel.demo.summary import Ready, print_ready

SECRET, KEY, DATABASE = (
    "s" * 64,
    "snt_live_" + "k" * 40,
    "postgresql://login:" + "p" * 43 + "@/sentinel?host=" + "h" * 60,
)


@pytest.mark.parametrize("columns", ["40", "80"])
def test_no_key_secret_or_address_is_cut(
    columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    base = "http://127.0.0.1:786"
    source = DemoOrderSource("demo", SECRET, f"{base}2/webhooks/demo/orders")
    print_ready(
        Ready(f"{base}0", f"{base}1", f"{base}2", f"{base}3", "t" * 36, KEY, [], source, DATABASE, {}),
        {},
        as_json=False,
    )
    lines = capsys.readouterr().out.splitlines()
    for name, whole in (("Agent key", KEY), ("secret", SECRET), ("Database", DATABASE), ("Tenant", "t" * 36)):
        assert any(line.strip().startswith(name) and line.endswith(" " + whole) for line in lines), name
