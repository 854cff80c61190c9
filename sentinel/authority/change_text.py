"""A change of people, keys or webhooks, as it was asked, in one sentence for who has to approve it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_ROLES = {"viewer": "a viewer", "approver": "an approver", "admin": "an administrator"}


def change_text(request: str) -> str:
    """What this request (canonical JSON) asks, e.g. "Make operator ann@shop.example an approver"."""
    asked = json.loads(request)
    action, params = asked["action"], asked["params"]
    if action.startswith("key."):
        return _of_key(action, params)
    if action.startswith("webhook."):
        return _of_webhook(action, params)
    email = params["email"]
    return {
        "operator.create": f"Make operator {email} {_ROLES.get(params.get('role'), '')}",
        "operator.set_role": f"Make operator {email}, until now {_ROLES.get(params.get('seen'), 'of another role')},"
        f" {_ROLES.get(params.get('role'), '')}",
        "operator.reactivate": f"Let operator {email} sign in again",
        "operator.reset_password": f"Reset the password of operator {email}",
        "operator.reset_second_factor": f"Take the second factor of operator {email} away",
    }[action]


def _of_webhook(action: str, params: Mapping[str, Any]) -> str:
    if action == "webhook.enable":
        return f"Send events to {params['url']} again"
    types = ", ".join(params["event_types"]) or "every type"
    return f"Send events ({types}) to {params['url']}"


def _of_key(action: str, params: Mapping[str, Any]) -> str:
    whose = f"agent {params['agent_id']}" if params.get("agent_id") else "any agent"
    ends = f", for {params['expires_seconds'] // 86400} days" if params.get("expires_seconds") else ", without an end"
    scopes = f"{'scopes' if len(params['scopes']) > 1 else 'scope'} {', '.join(params['scopes'])}"
    if action == "key.rotate":
        hours = params["overlap_seconds"] // 3600
        return f"Successor of key {params['old_key_id']}, for {whose} with the {scopes}{ends}; the old one ends after {hours} hours"
    owner = f", answered for by {params['owner']}" if params.get("owner") else ""
    return f"New key for {whose} with the {scopes}{owner}{ends}"
