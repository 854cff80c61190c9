"""The authority killed between commit and answer: the client asks again with its key and finds the one decision."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import urllib3

from tests.faults.database_proxy import proxied
from tests.support.fixtures import Fixtures, guard_body, unique
from tests.support.harness import scaled
from tests.support.killed import kill_with_children
from tests.support.served_programs import end, request, start_serve


def post(port: int, body: dict[str, Any], key: str) -> Any:
    return request("POST", f"http://127.0.0.1:{port}/api/sentinel/action/guard", body=body, headers={"X-API-Key": key})


def test_a_decision_whose_answer_died_with_the_authority_is_found_and_made_once(
    fixtures: Fixtures, tmp_path: Path
) -> None:
    with proxied(fixtures.url) as proxy:
        for _ in range(scaled(1)):
            process, port, _, _ = start_serve(
                proxy.url(fixtures.url), tmp_path, SENTINEL_PROCESSES="1", SENTINEL_SECRET_KEYS="only-for-tests-0123456789abcdefghij")  # fmt: skip
            reached, killed = threading.Event(), threading.Event()
            body = guard_body(value=1, params={"account_ref": unique("acct")})

            def hold_the_answer(
                key: str = body["idempotency_key"], reached: threading.Event = reached, killed: threading.Event = killed
            ) -> None:
                # Every reply passes here with its transaction over: once the row is there, the decision's and any other is
                # held. Another one's, as of the housekeeper, may be the first that finds it.
                if reached.is_set() or fixtures.one(
                    "select count(*) from sentinel.operations where idempotency_key = %s", key
                ):
                    reached.set()
                    killed.wait(150)

            assert post(port, guard_body(value=1, params={"account_ref": unique("acct")}), fixtures.key).status == 200
            proxy.on_reply = hold_the_answer
            outcome: list[Any] = []

            def ask(body: dict[str, Any] = body, port: int = port, outcome: list[Any] = outcome) -> None:
                try:
                    outcome.append(post(port, body, fixtures.key))
                except (urllib3.exceptions.HTTPError, OSError) as error:
                    outcome.append(error)

            client = threading.Thread(target=ask)
            client.start()
            assert reached.wait(60), "the decision was never committed"
            kill_with_children(process)
            killed.set()
            client.join(60)
            proxy.on_reply = None
            assert isinstance(outcome[0], (urllib3.exceptions.HTTPError, OSError)), "nobody was answered"

            process, port, _, _ = start_serve(
                fixtures.url, tmp_path, SENTINEL_PROCESSES="1", SENTINEL_SECRET_KEYS="only-for-tests-0123456789abcdefghij")  # fmt: skip
            try:
                again = post(port, body, fixtures.key)
            finally:
                end(process)
            assert (again.status, again.json["decision"], again.headers["idempotent-replayed"]) == (
                200,
                "ALLOW",
                "true",
            )
            assert "permit_token" in again.json
            key = body["idempotency_key"]
            assert fixtures.one("select count(*) from sentinel.operations where idempotency_key = %s", key) == 1
            assert fixtures.one(
                "select count(*) from sentinel.events e join sentinel.operations o using (tenant_id, operation_id)"
                " where o.idempotency_key = %s and kind = 'decision'", key) == 1  # fmt: skip
    assert fixtures.broken_invariants() == []


def test_mutant_that_forgets_keys_decides_twice_when_asked_again(fixtures: Fixtures) -> None:
    """The checker above counts decisions by key; on a store that forgets keys it would see two."""
    from tests import mutants

    mutants.forgets_keys(fixtures)
    body = guard_body(value=1)
    fixtures.guard(body)
    fixtures.guard(body)
    assert (
        fixtures.one(
            "select count(*) from sentinel.operations where idempotency_key like %s", body["idempotency_key"] + "%"
        )
        == 2
    )
    assert (
        fixtures.one("select count(*) from sentinel.operations where idempotency_key = %s", body["idempotency_key"])
        == 0
    )
