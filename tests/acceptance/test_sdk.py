"""The released clients, unmodified, against a real authority: what their users wrote must go on working."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support.busy import in_time
from tests.support.fixtures import unique
from tests.support.served_programs import REPO, Served, clean_env, eventually
from tests.support.warm_process import WarmProcess

DRIVER = Path(__file__).with_name("sdk_driver.py")
CACHE = REPO / ".sdk-cache"
OLD, NEW = "0.7.0", "0.8.0.dev1"
SCOPES_WITHOUT_CHECK = ("guard", "report", "approvals:read", "heartbeat")
"""The scopes that docs/agents.md gives to an agent of these clients."""
pytestmark = pytest.mark.slow


def installed(version: str) -> Path:
    """The folder of a released client, installed once. Skips when the registry cannot be reached."""
    folder = CACHE / version
    if (folder / "haltstate").is_dir():
        return folder
    CACHE.mkdir(exist_ok=True)
    draft = CACHE / f"draft-{version}-{os.getpid()}"
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", str(draft), f"haltstate-sdk=={version}"],
        capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    if done.returncode:
        shutil.rmtree(draft, ignore_errors=True)
        pytest.skip(
            f"haltstate-sdk {version} cannot be installed: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}"
        )
    try:
        draft.rename(folder)
    except OSError:
        shutil.rmtree(draft, ignore_errors=True)  # another test process was quicker
    return folder


class Sdk:
    """One released client, driven in processes of its own that begin with it imported."""

    def __init__(self, version: str, served: Served) -> None:
        self.version, self.served = version, served
        self.folder = installed(version)

    @property
    def has_start(self) -> bool:
        return self.version == NEW

    def _started(self, scenario: str, given: dict[str, Any]) -> WarmProcess:
        base = {"url": self.served.url, "key": self.served.key, "tenant_id": self.served.tenant_id}
        return WarmProcess(
            [sys.executable, str(DRIVER), scenario, json.dumps({**base, **given})], imported=("haltstate", "httpx"),
            env=clean_env(PYTHONPATH=str(self.folder)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def __call__(self, scenario: str, **given: Any) -> dict[str, Any]:
        return heard_by(self._started(scenario, given), within=120)

    def listening(self, scenario: str, **given: Any) -> WarmProcess:
        """Start a scenario that waits; returns once it said READY."""
        process = self._started(scenario, given)
        assert process.stdout is not None
        assert process.stdout.readline() == "READY\n"
        return process

    def guard(self, key: str, value: Any = 1, **given: Any) -> dict[str, Any]:
        return self("guard", idempotency_key=key, params=params(key, value), **given)


def params(key: str, value: Any, **risk: Any) -> dict[str, Any]:
    """A refund of an account of its own."""
    return {
        "amount": {"value": value, "currency": "USD"}, "ledger_entry_id": f"lge_{key}", "refund_id": f"rf_{key}", "account_ref": f"acct_{key}",
        "risk": {"duplicate_refund": False, "stale_window": False, "suspicious_reason": False, "customer_attempts_24h": 1, **risk},
    }  # fmt: skip


def heard_by(process: WarmProcess, within: float = 120) -> dict[str, Any]:
    """What a scenario said at its end, which may take `within` seconds."""
    with process:
        try:
            out, err = process.communicate(timeout=within)
        except BaseException:
            process.kill()
            raise
    assert process.returncode == 0, err[-3000:]
    return dict(json.loads(out.splitlines()[-1]))


def state_of(served: Served, key: str) -> tuple[Any, ...]:
    """(status, outcome) of an operation as stored, by its idempotency key."""
    with psycopg.connect(served.database_url) as connection:
        row = connection.execute(
            "select s.status, s.outcome from sentinel.operations o join sentinel.operation_states s using (tenant_id, operation_id)"
            " where o.idempotency_key = %s", [key],
        ).fetchone()  # fmt: skip
    assert row is not None
    return tuple(row)


def operations_about(served: Served, key: str) -> int:
    """How many operations have these params."""
    with psycopg.connect(served.database_url) as connection:
        row = connection.execute(
            "select count(*) from sentinel.operations where request::text like %s", [f"%lge_{key}%"]
        ).fetchone()
    assert row is not None
    return int(row[0])


@pytest.fixture(scope="module")
def approver(served: Served) -> str:
    people = served.cli_json("operators", "list")
    return str(next(one["email"] for one in people if one["role"] == "approver"))


@pytest.fixture(params=[OLD, NEW])
def sdk(request: pytest.FixtureRequest, served: Served) -> Iterator[Sdk]:
    yield Sdk(request.param, served)


def test_an_allowed_action_runs_once_and_is_reported_as_a_success(sdk: Sdk) -> None:
    key = unique("sdk")
    first, second = sdk.guard(key), sdk.guard(key)
    assert (first["ran"], second["ran"]) == (1, 0)
    assert first["audit"]["idempotency_key"] == key
    assert second["raised"] == ("ActionAlreadyStarted" if sdk.has_start else "JanusError"), second
    assert "completed" in (second.get("status") or second["text"])
    assert state_of(sdk.served, key)[1] == "success"


def test_a_denied_action_does_not_run_and_says_why(sdk: Sdk) -> None:
    told = sdk.guard(unique("sdk"), 1500)
    assert told["ran"] == 0
    assert told["raised"] == "ActionDenied"
    assert told["policy_id"] == "retail-refund"
    assert told["reason"]


def test_a_pending_action_runs_after_approval_and_only_then(sdk: Sdk, approver: str) -> None:
    key = unique("sdk")
    told = sdk.guard(key, 400)
    assert (told["ran"], told["raised"]) == (0, "ApprovalPending")
    assert sdk.guard(key, 400)["approval_id"] == str(uuid.UUID(told["approval_id"])) == told["approval_id"]
    done = sdk.served.cli("approvals", "approve", told["approval_id"], "--as", approver, "--reason", "looked at it")
    assert done.returncode == 0, done.stderr
    waited = sdk("wait_for_approval", approval_id=told["approval_id"])
    assert waited == {"status": "approved", "approver": approver, "reason": "looked at it"}
    ran = sdk.guard(key, 400)
    assert ran["ran"] == 1, ran
    assert ran["audit"]["approver"] == approver
    assert sdk.guard(key, 400)["ran"] == 0
    assert state_of(sdk.served, key)[1] == "success"


def test_a_rejected_action_is_denied_for_good(sdk: Sdk, approver: str) -> None:
    key = unique("sdk")
    approval = sdk.guard(key, 400)["approval_id"]
    assert sdk.served.cli("approvals", "reject", approval, "--as", approver, "--reason", "no").returncode == 0
    told = sdk.guard(key, 400)
    assert (told["ran"], told["raised"]) == (0, "ActionDenied"), told


def test_an_approval_nobody_gave_in_time_expires_for_good(sdk: Sdk) -> None:
    key = unique("sdk")
    approval = sdk.guard(key, 400)["approval_id"]
    with psycopg.connect(sdk.served.database_url, autocommit=True) as connection:
        # Half an hour passes: the database's clock decides, so the row is moved back instead of waiting.
        connection.execute("set session_replication_role = replica")
        connection.execute(
            "update sentinel.approvals set created_at = created_at - interval '1 hour', expires_at = expires_at - interval '1 hour'"
            " where approval_id = %s", [approval],
        )  # fmt: skip
    told = sdk.guard(key, 400)
    assert (told["ran"], told["raised"]) == (0, "ActionExpired"), told
    assert sdk.guard(key, 400)["raised"] == "ActionExpired"


def test_a_block_that_failed_is_in_doubt_and_not_executed_again(sdk: Sdk) -> None:
    key = unique("sdk")
    told = sdk.guard(key, 5, fail=True)
    assert (told["ran"], told["raised"], told["text"]) == (1, "RuntimeError", "the block failed")
    assert state_of(sdk.served, key) == ("in_doubt", "error")
    assert sdk.guard(key, 5)["ran"] == 0


@pytest.mark.parametrize("named", [{"agent_id": "retail-refund-agent", "action": "refund.create"}, {}])
def test_check_answers_and_its_report_is_recorded(sdk: Sdk, named: dict[str, str]) -> None:
    key = unique("sdk")
    found = sdk("check", params=params(key, 1), report="success", named=named)
    assert found["decision"] == "ALLOW"
    assert sdk("check", params=params(key, 1500))["decision"] == "DENY"
    assert sdk("check", params=params(key, 400))["decision"] == "APPROVAL_REQUIRED"
    with psycopg.connect(sdk.served.database_url) as connection:
        reports = connection.execute(
            "select count(*) from sentinel.check_reports where request_id = %s", [found["request_id"]]
        ).fetchone()
    assert reports == (1,)


def test_a_key_that_may_not_check_refuses_what_the_clients_decorators_would_run_unrecorded(sdk: Sdk) -> None:
    key = unique("sdk")
    assert sdk("decorated", params=params(key, 5)) == {"ran": 1}, "as docs/agents.md says"
    assert operations_about(sdk.served, key) == 0
    words = [word for scope in SCOPES_WITHOUT_CHECK for word in ("--scope", scope)]
    lesser = sdk.served.cli_json("keys", "create", "--worker", *words)["key"]
    told = sdk("decorated", params=params(key, 5), key=lesser)
    assert (told["ran"], told["raised"]) == (0, "JanusError") and "forbidden" in told["text"]
    assert sdk("guard", idempotency_key=key, params=params(key, 5), key=lesser)["ran"] == 1
    assert operations_about(sdk.served, key) == 1


def test_a_wrong_key_is_an_authentication_error(sdk: Sdk) -> None:
    assert sdk("wrong_key", params={})["raised"] == "JanusAuthError"


def test_a_key_used_for_something_else_is_refused_without_a_retry(sdk: Sdk) -> None:
    key = unique("sdk")
    sdk.guard(key, 400)
    tried = [sdk.guard(key, 401) for _ in range(3)]
    for told in tried:
        assert (told["ran"], told["raised"]) == (0, "JanusError")
        assert "idempotency-key-reused" in told["text"]
    assert in_time(min(told["seconds"] for told in tried), 0.9), "each was tried again"


def test_approvals_arrive_over_the_stream_and_in_the_history(sdk: Sdk, approver: str) -> None:
    approval = sdk.guard(unique("sdk"), 400)["approval_id"]
    listener = sdk.listening("approvals", want=approval)
    assert sdk.served.cli("approvals", "approve", approval, "--as", approver, "--reason", "ok").returncode == 0
    heard = heard_by(listener)["heard"]
    # Others may come too: the client asks to catch up on what was decided today.
    assert {"request_id": approval, "status": "approved", "approver": approver, "action": "refund.create"} in heard
    past = sdk("history", since="2020-01-01T00:00:00Z")["decisions"]
    assert {"request_id": approval, "status": "approved"} in past


def test_a_kill_interrupts_the_agent_and_guards_refuse_by_themselves(sdk: Sdk) -> None:
    listener = sdk.listening("heartbeat")
    halt = sdk.served.cli_json(
        "halts", "set", "--scope", "agent", "--target", "retail-refund-agent", "--reason", "test"
    )
    try:
        assert heard_by(listener) == {"interrupted": True}
        told = sdk.guard(unique("sdk"))
        assert (told["ran"], told["raised"]) == (0, "ActionDenied")
    finally:
        sdk.served.cli_json("halts", "lift", halt["halt_id"], "--reason", "over")
    assert sdk.guard(unique("sdk"))["ran"] == 1


def test_a_second_try_after_a_lost_answer_gets_the_same_decision(sdk: Sdk) -> None:
    # The client gave up waiting and asks again: for the old one the first answer was the start, so it must not run twice.
    key = unique("sdk")
    body = {
        "agent_id": "retail-refund-agent",
        "action": "refund.create",
        "params": params(key, 3),
        "idempotency_key": key,
    }
    if sdk.has_start:
        body |= {"resource": None, "risk_class": None, "evidence_context": {"correlation_id": str(uuid.uuid4())}}
    sdk.served.guard(body)
    assert sdk.guard(key, 3)["ran"] == (1 if sdk.has_start else 0)


def test_the_new_clients_report_sent_again_gets_the_original_receipt(served: Served) -> None:
    sdk, key = Sdk(NEW, served), unique("sdk")
    first, second = sdk("repeat_report", params=params(key, 2), idempotency_key=key, report_id=str(uuid.uuid4()))[
        "receipts"
    ]
    assert first["duplicate"] is second["duplicate"] is True
    assert (first["receipt_event_id"], first["receipt_hash"]) == (second["receipt_event_id"], second["receipt_hash"])


def test_both_generations_get_the_new_field_set(served: Served) -> None:
    key = unique("sdk")
    old = served.guard(
        {"agent_id": "retail-refund-agent", "action": "refund.create", "params": params(key, 1), "idempotency_key": key}
    )
    for name in ("operation_id", "decision_event_id"):
        assert str(uuid.UUID(old[name])) == old[name]
    for name in ("policy_version", "resource", "risk_class", "permit_token", "policy_id", "policy_label", "reason"):
        assert isinstance(old[name], str), name
        assert old[name], name
    assert old["permit_expires_at"].endswith("Z")
    assert (old["resource"], old["risk_class"]) == ("refund.create", "standard")


def test_started_and_silent_past_the_deadline_is_in_doubt(served: Served) -> None:
    # What a killed old client leaves behind. Its start is moved back instead of waiting for the deadline.
    key = unique("sdk")
    served.guard(
        {"agent_id": "retail-refund-agent", "action": "refund.create", "params": params(key, 1), "idempotency_key": key}
    )
    with psycopg.connect(served.database_url, autocommit=True) as connection:
        connection.execute("set session_replication_role = replica")
        connection.execute(
            "update sentinel.operation_states s set started_at = started_at - interval '1 hour'"
            " from sentinel.operations o where o.operation_id = s.operation_id and o.idempotency_key = %s", [key],
        )  # fmt: skip
    assert eventually(lambda: state_of(served, key)[0] == "in_doubt", within=5), state_of(served, key)
