"""Run by `test_sdk.py` in a process that sees one released client: python sdk_driver.py SCENARIO JSON → one JSON line.

Uses nothing of ours: what a user of `haltstate` would write.
"""

import json
import signal
import sys
import threading
import time

import haltstate


def client(given, **rest):
    # An authority that stands still is waited for: asked again, an older client would find its operation started.
    rest = {"timeout": 60.0, **rest}
    return haltstate.HaltStateClient(tenant_id=given["tenant_id"], api_key=given["key"], base_url=given["url"], **rest)


def error_fields(error):
    fields = {name: value for name, value in vars(error).items() if isinstance(value, (str, int, type(None)))}
    return {"raised": type(error).__name__, "text": str(error), **fields}


def guard(given):
    """One guarded block; what happened inside and what was raised."""
    ran = []
    arguments = {
        "params": given["params"],
        "idempotency_key": given["idempotency_key"],
        "agent_id": "retail-refund-agent",
        **given.get("more", {}),
    }
    with client(given, retry_count=given.get("retry_count", 2)) as sdk:
        began = time.monotonic()
        try:
            with sdk.guard("refund.create", **arguments) as permit:
                ran.append(permit.to_audit_dict() if hasattr(permit, "to_audit_dict") else {})
                if given.get("fail"):
                    raise RuntimeError("the block failed")
        except BaseException as error:
            return {"ran": len(ran), "seconds": time.monotonic() - began, **error_fields(error)}
    return {"ran": len(ran), "seconds": time.monotonic() - began, "audit": json.loads(json.dumps(ran[0], default=str))}


def check(given):
    with client(given) as sdk:
        found = sdk.check("refund.create", given["params"], agent_id="retail-refund-agent")
        if given.get("report"):
            # `action` may be left out: it is "" then, or the check's.
            sdk.report(found, given["report"], {"done": True}, **given.get("named", {}))
        return {
            "decision": str(getattr(found.decision, "value", found.decision)),
            "reason": found.reason,
            "policy_id": found.policy_id,
            "request_id": found.request_id,
        }


def decorated(given):
    """A function under the client's own decorator, which asks by a check."""
    ran = []
    with client(given) as sdk:
        decorate = haltstate.haltstate_guard(
            sdk, "refund.create", agent_id="retail-refund-agent", param_extractor=lambda: given["params"]
        )
        try:
            decorate(lambda: ran.append(1))()
        except Exception as error:
            return {"ran": len(ran), **error_fields(error)}
    return {"ran": len(ran)}


def wrong_key(given):
    with client({**given, "key": given["key"][:-1] + ("A" if given["key"][-1] != "A" else "B")}) as sdk:
        try:
            sdk.check("refund.create", given["params"])
        except Exception as error:
            return error_fields(error)
    return {"raised": None}


def approvals(given):
    """Listens; says READY once connected, then tells what it heard until the wanted decision came."""
    heard, got = threading.Event(), []
    sdk = client(given)

    def on_decision(decision):
        got.append(
            {
                "request_id": decision.request_id,
                "status": str(getattr(decision.status, "value", decision.status)),
                "approver": decision.approver,
                "action": decision.action,
            }
        )
        if decision.request_id == given["want"]:
            heard.set()

    sdk.on_approval(on_decision)
    print("READY", flush=True)
    heard.wait(given.get("wait", 100))
    sdk.close()
    return {"heard": got}


def history(given):
    with client(given) as sdk:
        found = sdk.get_approvals_since(given["since"])
        return {
            "decisions": [
                {"request_id": one.request_id, "status": str(getattr(one.status, "value", one.status))} for one in found
            ]
        }


def wait_for_approval(given):
    with client(given) as sdk:
        found = sdk.wait_for_approval(given["approval_id"], timeout=60, poll_interval=0.3)
        return {
            "status": str(getattr(found.status, "value", found.status)),
            "approver": found.approver,
            "reason": found.reason,
        }


def heartbeat(given):
    """Works until the kill switch interrupts it."""
    # What a shell started in the background ignores SIGINT, and then the client's interrupt would go unseen.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sdk = client(given, enable_kill_switch=True, kill_switch_interval=0.3, agent_id="retail-refund-agent")
    print("READY", flush=True)
    until = time.monotonic() + given.get("wait", 100)
    try:
        # The client's interrupt is seen between two steps of Python, not inside one long sleep.
        while time.monotonic() < until:
            time.sleep(0.05)
    except KeyboardInterrupt:
        return {"interrupted": True}
    finally:
        sdk.close()
    return {"interrupted": False}


def repeat_report(given):
    """0.8: the same report sent again by hand gets the original receipt."""
    arguments = {
        "params": given["params"],
        "idempotency_key": given["idempotency_key"],
        "agent_id": "retail-refund-agent",
        "report_id": given["report_id"],
    }
    with client(given) as sdk:
        with sdk.guard("refund.create", **arguments) as permit:
            token = permit.permit_token
        receipts = []
        for _ in range(2):
            permit.permit_token = token
            receipts.append(sdk.report_guard_outcome(permit, report_id=given["report_id"], outcome="success"))
    return {"receipts": receipts}


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](json.loads(sys.argv[2]))), flush=True)
