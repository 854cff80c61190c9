"""The MCP proxy and arguments that can be received, as a client of 2026-07-28 may escape them, and sent to no server."""

from __future__ import annotations

import json

import pytest

from tests.adapters.proxy_processes import ProxyProcesses
from tests.adapters.test_mcp_proxy_spans import META, asked

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("adapter-mcp_proxy")]


DEEP = json.loads('{"a":' * 300 + "1" + "}" * 300)


@pytest.mark.parametrize(
    "reason", ["Sorry \ud83d", float("nan"), {"said": ["\udc00"]}, DEEP], ids=["cut", "nan", "within", "deep"]
)
@pytest.mark.parametrize("tool", ["create_refund", "look_up"])
def test_what_cannot_be_sent_is_refused_before_the_start(proxied: ProxyProcesses, tool: str, reason: object) -> None:
    """The finding: a text that its program had cut within an emoji left the operation started, in doubt and never sent."""
    told = asked(proxied, tool, META, payment_intent=proxied.payment, amount=5000, reason=reason)
    assert "malformed_argument" in told and "in_doubt" not in told
    assert (proxied.operations(), proxied.effects()) == ([], [])
