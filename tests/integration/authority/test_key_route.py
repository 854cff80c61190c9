"""`GET key`: a key is told whose it is, and nothing of anybody else's."""

from __future__ import annotations

from sentinel.authority.app import PREFIXES
from sentinel.authority.keys import WORKER_SCOPES
from tests.support.fixtures import Fixtures


def test_any_key_is_told_its_own_tenant_agent_and_scopes_whatever_it_may_do(fixtures: Fixtures) -> None:
    label = fixtures.admin.execute(
        "select label from sentinel.tenants where tenant_id = %s", [fixtures.tenant_id]
    ).fetchone()
    assert label is not None
    own = {"tenant_id": str(fixtures.tenant_id), "tenant": label[0], "scopes": sorted(WORKER_SCOPES)}
    assert fixtures.get("key").get_json() == own
    assert fixtures.get("key", key=fixtures.new_key(agent_id="a-1", scopes=("report",))).get_json() == {
        **own,
        "agent_id": "a-1",
        "scopes": ["report"],
    }
    for prefix in PREFIXES:
        assert fixtures.client.get(f"{prefix}/key", headers={"X-API-Key": fixtures.key}).get_json() == own


def test_without_a_key_or_for_another_tenant_nothing_is_told(fixtures: Fixtures) -> None:
    assert fixtures.client.get("/api/sentinel/key").status_code == 401
    other = {"X-API-Key": fixtures.key, "X-Tenant-Id": "00000000-0000-0000-0000-000000000000"}
    assert fixtures.client.get("/api/sentinel/key", headers=other).status_code == 403
