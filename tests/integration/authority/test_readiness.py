"""An authority says that it is ready once the database knows the policies it decides by, not before."""

from __future__ import annotations

import shutil
from pathlib import Path

from sentinel.app import build_authority, create_app
from sentinel.http.rate_limit import SharedRateLimit
from sentinel.policy.library import PolicyHolder
from sentinel.resources import policies_dir
from sentinel.services.declare_policies import declare_policies
from sentinel.settings import Settings
from tests.world import SECRET, World


def test_an_authority_with_undeclared_policies_is_not_ready(world: World, tmp_path: Path) -> None:
    folder = tmp_path / "policies"
    shutil.copytree(policies_dir(), folder)
    file = folder / "retail_refund.yaml"
    file.write_text(file.read_text().replace("label: Retail Refund Policy v1", "label: A text nobody declared"))
    settings = Settings(database_url=world.url, secret_keys=(SECRET,), pool_size=2)
    authority = build_authority(settings, PolicyHolder(folder))
    asked = create_app(settings, authority, SharedRateLimit(per_second=100, burst=100)).test_client()
    try:
        before = asked.get("/readyz")
        assert (before.status_code, before.headers["Retry-After"]) == (503, "1")
        assert before.json["checks"] == {"database": True, "writable": True, "schema": True, "policies": False}
        declare_policies(authority)
        after = asked.get("/readyz")
        assert (after.status_code, after.json["status"]) == (200, "ready")
    finally:
        declare_policies(world.authority)
        authority.pool.close()
