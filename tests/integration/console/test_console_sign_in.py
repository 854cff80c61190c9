"""Who gets in, who stays in, and what an operator route says to everybody else."""

from __future__ import annotations

import hashlib
import re
from typing import Any

import psycopg
import pytest
import structlog

from ops_console import identity
from ops_console.accounts import sign_in as service
from sentinel.authority.keys import issue_key
from sentinel.platform.http import problems

PASSWORD = "correct horse battery staple"
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND")
UNKNOWN = (
    "/ops",
    "/ops/",
    "/ops/pages",
    "/ops/api",
    "/ops/api/",
    "/ops/api/nope",
    "/ops/api/approvals/",
    "/ops/api/live",
    "/ops/%61pi/halts",
)


def open_doors(app: Any) -> list[str]:
    """Operator paths × methods that answer a stranger anything but the one 401."""
    client, found = app.test_client(), []
    paths = [
        str(rule).replace("<", "").replace(">", "")
        for rule in app.flask.url_map.iter_rules()
        if str(rule).startswith("/ops")
    ]
    for path in [*(path for path in paths if not path.startswith("/ops/api/live/")), *UNKNOWN]:
        for method in METHODS:
            if (path, method) == ("/ops/api/session", "POST") or path == "/ops/sign-in":
                continue
            answer = client.open(path, method=method, data=b'{"broken', content_type="application/json")
            body = answer.get_json(silent=True) or {}
            told = {"type", "title", "status", "detail", "instance"} == body.keys() and body[
                "detail"
            ] == "Invalid or missing credentials"
            if answer.status_code != 401 or not (told or method == "HEAD"):
                found.append(f"{method} {path}: {answer.status_code}")
    return found


def test_half_a_surrogate_pair_at_the_door_is_a_400_and_no_500(fixtures: Any) -> None:
    client = fixtures.app().test_client()
    for body in (
        rb'{"\ud800":1}',
        rb'{"email":"\udfff@x","password":"x"}',
        rb'{"email":"a@x.example","password":"\ud800"}',
    ):
        answer = client.post("/ops/api/session", data=body, content_type="application/json")
        assert (answer.status_code, answer.mimetype) == (400, "application/problem+json"), body


def test_every_operator_route_answers_a_stranger_401_and_nothing_else(fixtures: Any) -> None:
    assert open_doors(fixtures.app()) == []


def test_the_check_for_open_doors_sees_a_console_without_its_gate(
    fixtures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(problems, "log", structlog.get_logger().bind())
    monkeypatch.setattr(problems.log, "exception", lambda *_, **__: None)
    app = fixtures.app()
    app.flask.before_request_funcs.clear()
    assert len(open_doors(app)) > 20


@pytest.mark.parametrize("credentials", ["Bearer nonsense", "Basic YTpi", "Bearer ", "bearer snt_oper_" + "0" * 36])
def test_wrong_credentials_are_the_same_401(fixtures: Any, credentials: str) -> None:
    answer = fixtures.app().test_client().get("/ops/api/approvals", headers={"Authorization": credentials})
    assert (answer.status_code, answer.json["detail"]) == (401, "Invalid or missing credentials")


def test_an_agent_key_opens_no_operator_route(fixtures: Any) -> None:
    key = issue_key(fixtures.pool, fixtures.tenant_id, agent_id=None, scopes=("guard", "approvals:read_all")).key
    client = fixtures.app().test_client()
    for headers in ({"X-API-Key": key}, {"Authorization": f"Bearer {key}"}, {"Cookie": f"sentinel={key}"}):
        assert client.get("/ops/api/approvals", headers=headers).status_code == 401


def test_a_wrong_token_is_not_mended_by_a_cookie_that_came_along(fixtures: Any) -> None:
    person = fixtures.person("ann")
    assert person.get("/ops/api/approvals").status_code == 200
    assert person.get("/ops/api/approvals", headers={"Authorization": "Bearer x"}).status_code == 401


def test_a_copied_cookie_is_worth_nothing_after_sign_out(fixtures: Any) -> None:
    person, copied = fixtures.person("ann"), fixtures.app().test_client()
    copied.set_cookie("sentinel", person.client.get_cookie("sentinel").value)
    assert copied.get("/ops/api/session").status_code == 200
    assert person.delete("/ops/api/session").status_code == 204
    assert copied.get("/ops/api/session").status_code == 401


def test_signing_in_again_ends_the_session_before(fixtures: Any) -> None:
    app = fixtures.app()
    person = fixtures.person("ann", app=app)
    before = person.client.get_cookie("sentinel").value
    assert (
        person.client.post("/ops/api/session", json={"email": "ann@demo.local", "password": PASSWORD}).status_code
        == 200
    )
    old = app.test_client()
    old.set_cookie("sentinel", before)
    assert old.get("/ops/api/session").status_code == 401


@pytest.mark.parametrize(("column", "back"), [("last_seen_at", "16 minutes"), ("expires_at", "9 hours")])
def test_a_session_ends_when_idle_and_when_old(fixtures: Any, column: str, back: str) -> None:
    person = fixtures.person("ann")
    fixtures.sql(f"update sentinel.operator_sessions set {column} = {column} - interval '{back}'")
    assert person.get("/ops/api/session").status_code == 401


def test_using_a_session_keeps_it_from_going_idle(fixtures: Any) -> None:
    person = fixtures.person("ann")
    fixtures.sql("update sentinel.operator_sessions set last_seen_at = last_seen_at - interval '14 minutes'")
    assert person.get("/ops/api/session").status_code == 200
    assert fixtures.sql(
        "select last_seen_at > clock_timestamp() - interval '1 minute' from sentinel.operator_sessions"
    ) == [(True,)]


def test_a_deactivated_operator_is_out_at_the_next_request(fixtures: Any) -> None:
    person = fixtures.person("ann")
    fixtures.sql("update sentinel.operators set active = false")
    assert person.get("/ops/api/session").status_code == 401
    assert person.client.post("/ops/api/session", json={"email": person.email, "password": PASSWORD}).status_code == 401


def test_a_new_role_counts_at_the_next_request(fixtures: Any) -> None:
    person = fixtures.person("ann", "admin")
    fixtures.sql("update sentinel.operators set role = 'viewer'")
    assert person.post("/ops/api/halts", {"scope": "tenant", "reason": "x"}).status_code == 403


def test_the_cookie_is_host_bound_secure_and_out_of_reach_of_scripts(fixtures: Any) -> None:
    fixtures.operator("ann")
    client = fixtures.app(insecure_cookies=False).test_client()
    answer = client.post(
        "/ops/api/session", json={"email": "ann@demo.local", "password": PASSWORD}, base_url="https://console.example"
    )
    cookie = answer.headers["Set-Cookie"]
    assert cookie.startswith("__Host-sentinel=")
    for wanted in ("Secure", "HttpOnly", "SameSite=Strict", "Path=/"):
        assert wanted in cookie
    assert "Domain" not in cookie


def test_behind_tls_every_page_tells_browsers_to_stay_there(fixtures: Any) -> None:
    paths = ("/ops/sign-in", "/live", "/ops/api/session", "/healthz", "/nothing", "/docs", "/confirm/x")

    def transport_security(headers: dict[str, str], **settings: Any) -> set[str | None]:
        client = fixtures.app(**settings).test_client()
        return {client.get(path, headers=headers).headers.get("Strict-Transport-Security") for path in paths}

    year = {"max-age=31536000"}
    assert transport_security({"X-Forwarded-Proto": "https"}) == {None}
    assert transport_security({"X-Forwarded-Proto": "https", "X-Forwarded-For": "10.1.1.1"}, trusted_proxies=1) == year
    assert transport_security({"X-Forwarded-Proto": "http", "X-Forwarded-For": "10.1.1.1"}, trusted_proxies=1) == {None}
    assert transport_security({}, behind_tls=True) == year


def test_passwords_sessions_and_tokens_are_kept_as_hashes_only(fixtures: Any) -> None:
    person = fixtures.person("ann")
    token = person.post("/ops/api/tokens", {}).json["token"]
    cookie = person.client.get_cookie("sentinel").value
    everything = str(
        fixtures.sql(
            "select o::text, s::text, t::text from sentinel.operators o, sentinel.operator_sessions s, sentinel.operator_tokens t"
        )
    )
    assert hashlib.sha256(cookie.encode()).hexdigest() in everything
    for secret in (PASSWORD, cookie, token):
        assert secret not in everything


def test_unknown_wrong_and_deactivated_are_one_answer_for_the_same_work(
    fixtures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixtures.operator("ann")
    fixtures.operator("gone")
    fixtures.sql("update sentinel.operators set active = false where email like 'gone%%'")
    checked: list[bool] = []
    real = service.is_right
    monkeypatch.setattr(
        service, "is_right", lambda hash_, password: checked.append(hash_ is None) or real(hash_, password)
    )
    client, told = fixtures.app().test_client(), set()
    for email in ("ann@demo.local", "gone@demo.local", "nobody@demo.local"):
        answer = client.post("/ops/api/session", json={"email": email, "password": "wrong wrong wrong"})
        told.add((answer.status_code, *(answer.json[name] for name in ("type", "title", "detail"))))
    assert len(told) == 1 and next(iter(told))[0] == 401
    # One password check each; the two that cannot fit are checked against nobody's hash.
    assert checked == [False, True, True]


def test_a_shared_address_needs_its_tenant(fixtures: Any) -> None:
    fixtures.operator("ann")
    fixtures.operator("ann", tenant_id=fixtures.tenant("other"))
    client = fixtures.app().test_client()
    body = {"email": "ann@demo.local", "password": PASSWORD}
    assert client.post("/ops/api/session", json=body).status_code == 401
    assert client.post("/ops/api/session", json={**body, "tenant": "other"}).json["tenant"] == "other"


def test_a_browser_can_name_the_tenant_of_a_shared_address(fixtures: Any) -> None:
    fixtures.operator("ann")
    fixtures.operator("ann", tenant_id=fixtures.tenant("other"))
    fixtures.operator("bob")
    client = fixtures.app().test_client()
    shown = client.get("/ops/sign-in").text
    form = dict.fromkeys(re.findall(r'<input name="([a-z]+)"', shown), "")
    assert list(form) == ["email", "password", "code", "tenant"]
    refused = client.post("/ops/sign-in", data={**form, "email": "ann@demo.local", "password": PASSWORD})
    assert refused.status_code == 401
    assert "Invalid or missing credentials" in refused.text
    refused = client.post("/ops/sign-in", data={**form, "email": "ann@demo.local", "password": "x", "tenant": "other"})
    assert (refused.status_code, '<input name="tenant" type="text" value="other"' in refused.text) == (401, True)
    answer = client.post(
        "/ops/sign-in", data={**form, "email": "ann@demo.local", "password": PASSWORD, "tenant": "other"}
    )
    assert answer.status_code == 303
    assert "approver · other" in client.get("/ops").text
    # Whose address is in one names none.
    assert (
        client.post("/ops/sign-in", data={**form, "email": "bob@demo.local", "password": PASSWORD}).status_code == 303
    )


# Forged requests -----------------------------------------------------------------------------------------------------

FORGED = {
    "no token": ({"X-CSRF-Token": ""}, True),
    "another token": ({"X-CSRF-Token": "x" * 43}, True),
    "another origin": ({"Origin": "https://evil.example"}, False),
    "origin null": ({"Origin": "null"}, False),
    "another port": ({"Origin": "http://localhost:9999"}, False),
    "a sibling site": ({"Sec-Fetch-Site": "same-site"}, False),
    "another site": ({"Sec-Fetch-Site": "cross-site"}, False),
}


def forgeries_that_work(fixtures: Any, person: Any) -> list[str]:
    """Unsafe requests with the victim's cookie that changed or answered something."""
    approval_id, found, tried = fixtures.approval(), [], 0
    for name, (headers, _) in FORGED.items():
        tried += 5
        for path, body in (
            ("/ops/api/halts", {"scope": "tenant", "reason": "forged"}),
            (f"/ops/api/approvals/{approval_id}/approve", {"reason": "forged"}),
            ("/ops/api/tokens", {}),
            ("/ops/api/nope", {}),
        ):
            if person.post(path, body, headers=headers).status_code != 403:
                found.append(f"{name}: {path}")
        if (
            person.client.delete("/ops/api/session", headers={"X-CSRF-Token": person.csrf, **headers}).status_code
            != 403
        ):
            found.append(f"{name}: sign out")
    if fixtures.approval_status(approval_id) != "pending" or fixtures.sql("select 1 from sentinel.halts"):
        found.append("an effect")
    print(f"N={tried} forged requests, {len(found)} worked")
    return found


def test_a_forged_request_with_a_real_cookie_has_no_effect(fixtures: Any) -> None:
    assert forgeries_that_work(fixtures, fixtures.person("ann", "admin")) == []


def test_the_check_for_forgeries_sees_a_console_that_believes_cookies(
    fixtures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "check_csrf", lambda *_: None)
    assert "an effect" in forgeries_that_work(fixtures, fixtures.person("ann", "admin"))


def test_signing_in_from_another_site_is_refused(fixtures: Any) -> None:
    fixtures.operator("ann")
    body = {"email": "ann@demo.local", "password": PASSWORD}
    answer = (
        fixtures.app().test_client().post("/ops/api/session", json=body, headers={"Origin": "https://evil.example"})
    )
    assert answer.status_code == 403
    assert "Set-Cookie" not in answer.headers


def test_the_named_origin_counts_behind_a_proxy(fixtures: Any) -> None:
    person = fixtures.person("ann", "admin", fixtures.app(origin="https://console.example"))
    body = {"scope": "tenant", "reason": "x"}
    assert person.post("/ops/api/halts", body, headers={"Origin": "https://console.example"}).status_code == 201
    assert person.post("/ops/api/halts", body, headers={"Origin": "http://localhost"}).status_code == 403


# Tokens --------------------------------------------------------------------------------------------------------------


def test_a_token_works_without_csrf_until_it_is_revoked(fixtures: Any) -> None:
    person, script = fixtures.person("ann", "admin"), fixtures.app().test_client()
    made = person.post("/ops/api/tokens", {"label": "nightly", "expires_days": 1}).json
    headers = {"Authorization": f"Bearer {made['token']}"}
    assert script.post("/ops/api/halts", json={"scope": "tenant", "reason": "x"}, headers=headers).status_code == 201
    assert script.post("/ops/api/tokens", json={}, headers=headers).status_code == 403
    assert person.delete(f"/ops/api/tokens/{made['token_id']}").status_code == 204
    assert script.get("/ops/api/halts", headers=headers).status_code == 401


def test_a_token_dies_with_its_end_and_with_its_operator(fixtures: Any) -> None:
    person, script = fixtures.person("ann"), fixtures.app().test_client()
    headers = {"Authorization": f"Bearer {person.post('/ops/api/tokens', {}).json['token']}"}
    assert script.get("/ops/api/session", headers=headers).status_code == 200
    fixtures.sql("update sentinel.operators set active = false")
    assert script.get("/ops/api/session", headers=headers).status_code == 401
    fixtures.sql("update sentinel.operators set active = true")
    fixtures.sql("update sentinel.operator_tokens set expires_at = clock_timestamp()")
    assert script.get("/ops/api/session", headers=headers).status_code == 401


@pytest.mark.parametrize("days", [0, 91, True, "1", 1.5])
def test_a_token_lives_one_to_ninety_days(fixtures: Any, days: Any) -> None:
    assert fixtures.person("ann").post("/ops/api/tokens", {"expires_days": days}).status_code == 400


def test_nobody_ends_another_operators_token(fixtures: Any) -> None:
    app = fixtures.app()
    made = fixtures.person("ann", app=app).post("/ops/api/tokens", {}).json
    assert fixtures.person("bob", "admin", app).delete(f"/ops/api/tokens/{made['token_id']}").status_code == 404


def test_signing_in_waits_two_seconds_and_its_409_is_documented(fixtures: Any) -> None:
    fixtures.operator("ann")
    client = fixtures.app().test_client()
    documented = client.get("/openapi.json").json["paths"]["/ops/api/session"]
    with psycopg.connect(fixtures.url) as holder:
        holder.execute("lock table sentinel.sign_in_attempts in access exclusive mode")
        answer = client.post("/ops/api/session", json={"email": "ann@demo.local", "password": PASSWORD})
    assert (answer.status_code, answer.mimetype, answer.headers["Retry-After"]) == (
        409,
        "application/problem+json",
        "1",
    )
    assert "409" in documented["post"]["responses"]


def test_the_session_is_read_and_ended_with_every_answer_documented(fixtures: Any) -> None:
    person = fixtures.person("ann")
    documented = person.client.get("/openapi.json").json["paths"]["/ops/api/session"]
    fixtures.sql("update sentinel.operator_sessions set last_seen_at = last_seen_at - interval '5 minutes'")
    for method in ("get", "delete"):
        with psycopg.connect(fixtures.url) as holder:
            holder.execute("select 1 from sentinel.operator_sessions for update")
            answer = person.client.open(
                "/ops/api/session", method=method.upper(), headers={"X-CSRF-Token": person.csrf}
            )
        assert (answer.status_code, "409" in documented[method]["responses"]) == (409, True), method
