"""What one administrator asks and a second one approves, by the pages."""

from __future__ import annotations

import uuid
from typing import Any

from sentinel.authority.keys import issue_key
from tests.integration.console.second_factors import with_secrets


def waiting(answer: Any) -> str:
    """The id of the approval that an act waits for."""
    address = answer.headers.get("Location", "")
    assert (answer.status_code, address.startswith("/ops/approvals/")) == (303, True), answer.get_data(as_text=True)
    return str(address.rpartition("/")[2])


def approve(fixtures: Any, approval_id: str, second: Any) -> None:
    """The second administrator's browser approves it."""
    vote = {"verdict": "approve", "reason": "we spoke about it", "digest": fixtures.digest(approval_id)}
    answer = second.submit(f"/ops/approvals/{approval_id}", **vote)
    assert answer.status_code == 303, answer.get_data(as_text=True)


def agreed(fixtures: Any, asker: Any, answer: Any, second: Any) -> Any:
    """The page that shows the asker the password or key of an act that the second administrator's browser approved."""
    approval_id = waiting(answer)
    approve(fixtures, approval_id, second)
    made = asker.submit(f"/ops/approvals/{approval_id}/collect")
    assert made.status_code in (200, 201), made.get_data(as_text=True)
    return made


FIRST = "a first password of three words"
SECRETLESS = ("role", "reactivate", "reset-second-factor")
ACTS = ("create", "password", "issue", "rotate", *SECRETLESS)


class Two:
    """Two administrators' browsers, somebody whom they can change, and a key."""

    def __init__(self, fixtures: Any, bobs_role: str = "viewer") -> None:
        self.fixtures, self.app = fixtures, with_secrets(fixtures)
        self.arranged: set[str] = set()
        """Invariants that the test itself breaks, by rows that no program of ours writes."""
        self.ada = fixtures.browser("ada", "admin", self.app, proved=True)
        self.bea = fixtures.browser("bea", "admin", self.app, proved=True)
        self.bob = fixtures.operator("bob", bobs_role)
        self.key_id = issue_key(fixtures.pool, fixtures.tenant_id, agent_id="an-agent").key_id
        fixtures.sql(
            "insert into sentinel.second_factors (tenant_id, operator_id, secret, confirmed_at) values (%s, %s, 'x', now())",
            fixtures.tenant_id, self.bob.operator_id)  # fmt: skip

    def ask(self, act: str, by: Any = None) -> Any:
        """The answer to asking for it by the pages."""
        by, bob = by or self.ada, f"/ops/operators/{self.bob.operator_id}"
        if act == "reactivate":
            self.fixtures.sql(
                "update sentinel.operators set active = false where operator_id = %s", self.bob.operator_id
            )
        return {
            "create": lambda: by.submit("/ops/operators", operator_id=str(uuid.uuid4()), email="eve@demo.local", role="approver"),
            "password": lambda: by.submit(f"{bob}/password", password=FIRST),
            "issue": lambda: by.submit("/ops/keys", key_id=str(uuid.uuid4()), agent_id="a-b", scopes=["guard", "heartbeat"], label="one"),
            "rotate": lambda: by.submit(f"/ops/keys/{self.key_id}/rotate", key_id=str(uuid.uuid4()), overlap_hours="1"),
            "role": lambda: by.submit(f"{bob}/role", role="admin", seen="viewer"),
            "reactivate": lambda: by.submit(f"{bob}/reactivate"),
            "reset-second-factor": lambda: by.submit(f"{bob}/reset-second-factor"),
        }[act]()  # fmt: skip


def power(fixtures: Any) -> set[tuple[str, str]]:
    """Who may do what: accounts with role and password, the factors that guard them, keys that work, and who is sent events."""
    people = fixtures.sql("select operator_id::text, role || active || md5(password_hash) from sentinel.operators")
    guards = fixtures.sql("select operator_id::text, secret from sentinel.second_factors")
    works = fixtures.sql(
        "select key_id::text, coalesce(expires_at::text, '') from sentinel.agent_keys where revoked_at is null"
    )
    receive = fixtures.sql("select endpoint_id::text, url from sentinel.event_endpoints where disabled_at is null")
    return {*people, *guards, *works, *receive}
