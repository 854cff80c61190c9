"""Stop something: from the commit on, no guard is allowed and nothing starts that the halt covers."""

from __future__ import annotations

import re

from sentinel.authority import halts
from sentinel.authority.actor import Actor
from sentinel.core.errors import Forbidden, InvalidInput
from sentinel.core.operation import check_identifier
from sentinel.store.database import Pool
from sentinel.store.ids import new_id

_ACTION_PATTERN = re.compile(r"[A-Za-z0-9._:/@-]{1,126}\.\*")


def set_halt(
    pool: Pool, actor: Actor, *, scope: str, target: str = "", level: str = "kill", reason: str
) -> halts.HaltSet:
    """The halt in force. Agents, actions (or "refund.*"), scenarios and "AGENT ACTION" need a `target`; approvers may halt.

    A global halt stops other tenants too, so only a local administrator sets one. Raises `InvalidInput`, `Forbidden`.
    """
    actor.must_be("approver")
    _check(scope, target, level)
    if scope == "global" and not actor.is_local:
        raise Forbidden("a global halt is set on the machine itself: `sentinel halts set --scope global`")
    return halts.set_halt(
        pool, owner=halts.EVERYBODY if scope == "global" else actor.tenant_id, halt_id=new_id(), scope=scope,
        target=target, level=level, reason=reason, set_by=actor.name, event_id=new_id(),
    )  # fmt: skip


def _check(scope: str, target: str, level: str) -> None:
    if scope not in halts.SCOPES:
        raise InvalidInput.of("scope", f"must be one of {', '.join(halts.SCOPES)}")
    if level not in halts.LEVELS:
        raise InvalidInput.of("level", f"must be one of {', '.join(halts.LEVELS)}")
    if scope in ("global", "tenant"):
        if target:
            raise InvalidInput.of("target", f"must be left out for the scope {scope}")
    elif scope == "agent_action":
        agent, _, action = target.partition(" ")
        check_identifier(agent, "target", 128)
        check_identifier(action, "target", 128)
    elif not (scope == "action" and _ACTION_PATTERN.fullmatch(target)):
        check_identifier(target, "target", 128)
