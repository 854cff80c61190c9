"""Signing in and out, and an operator's own tokens."""

from __future__ import annotations

from flask import Blueprint, Response, g, request

from ops_console.accounts.operator_tokens import issue_token, list_tokens, revoke_token
from ops_console.accounts.own_account import change_own_password
from ops_console.accounts.sessions import SignedIn
from ops_console.accounts.sign_in import sign_out
from ops_console.accounts.step_up import step_up
from ops_console.api.case_schemas import SessionSchema
from ops_console.api.control_schemas import TokenListSchema, TokenMadeSchema
from ops_console.api.rendering import OPERATOR, READING, WRITING, json_response, path_id, present
from ops_console.api.request_schemas import CreateTokenSchema, OwnPasswordSchema, SignInSchema, StepUpSchema
from ops_console.context import ConsoleContext
from ops_console.identity import actor, check_origin, cookie_name, must_have_proved, set_cookie
from ops_console.sign_in_http import set_session_cookie, sign_in_request
from sentinel.core.errors import Forbidden, InvalidInput
from sentinel.platform.http.bodies import json_body, load, without_nulls
from sentinel.platform.http.openapi import documented

_SIGN_IN, _STEP_UP, _CREATE_TOKEN, _OWN_PASSWORD = (
    SignInSchema(),
    StepUpSchema(),
    CreateTokenSchema(),
    OwnPasswordSchema(),
)
DEFAULT_TOKEN_DAYS = 30


def routes(blueprint: Blueprint, context: ConsoleContext) -> None:
    """Add the session and token routes."""
    _sessions(blueprint, context)
    _tokens(blueprint, context)


def _sessions(blueprint: Blueprint, context: ConsoleContext) -> None:
    @blueprint.post("/session")
    @documented(
        "Sign in", request=_SIGN_IN, responses={200: ("A session cookie, and the token that unsafe requests must carry.", SessionSchema)},
        problems=(400, 401, 403, 409, 411, 413, 415, 429, 503),
    )  # fmt: skip
    def create_session() -> Response:
        check_origin(context)
        given = load(_SIGN_IN, without_nulls(json_body()))
        opened = sign_in_request(context, given, kind="api")
        response = json_response({
            "operator": opened.actor.email, "role": opened.actor.role, "tenant": opened.tenant_label,
            "csrf_token": opened.csrf_token, "expires_at": opened.expires_at,
        })  # fmt: skip
        return set_session_cookie(context, response, opened)

    @blueprint.get("/session")
    @documented(
        "Who is signed in", responses={200: ("The operator.", SessionSchema)}, problems=READING, security=OPERATOR
    )
    def show_session() -> Response:
        who: SignedIn = g.signed_in
        return json_response(present({
            "operator": who.email, "role": who.role, "tenant": who.tenant_label, "csrf_token": who.csrf_token,
            "expires_at": who.expires_at, "must_set_password": who.must_set_password or None,
        }))  # fmt: skip

    @blueprint.delete("/session")
    @documented("Sign out", responses={204: ("The session has ended, also for copies of its cookie.", None)},
                problems=READING, security=OPERATOR)  # fmt: skip
    def delete_session() -> Response:
        response = Response(status=204)
        if g.by_cookie:
            sign_out(context.pool, request.cookies[cookie_name(context.settings.insecure_cookies)])
            set_cookie(context, response, "", 0)
        return response

    @blueprint.post("/session/password")
    @documented("Set your own password; your other sessions end", request=_OWN_PASSWORD,
                responses={204: ("The password is set; what was refused with a password set by somebody else is now allowed.", None)},
                problems=(*WRITING, 409, 429), security=OPERATOR)  # fmt: skip
    def set_password() -> Response:
        if not g.by_cookie:
            raise Forbidden("a password cannot be set with a token; sign in first")
        given = load(_OWN_PASSWORD, without_nulls(json_body()))
        change_own_password(
            context.pool, g.signed_in, old=given["old"], new=given["new"], address=request.remote_addr or "unknown",
            authenticator=context.authenticator,
        )  # fmt: skip
        return Response(status=204)

    @blueprint.post("/session/step-up")
    @documented("Confirm your identity again, before sensitive actions of a session", request=_STEP_UP,
                responses={204: ("Confirmed, for the next SENTINEL_STEP_UP_SECONDS.", None)},
                problems=(*WRITING, 429), security=OPERATOR)  # fmt: skip
    def step_up_session() -> Response:
        if not g.by_cookie:
            raise Forbidden("a token has no session to confirm; sign in first")
        given = load(_STEP_UP, without_nulls(json_body()))
        if len(given) != 1:
            raise InvalidInput.of("password", "or code is needed, and only one of them")
        ((_, proof),) = given.items()
        step_up(
            context.pool,
            g.signed_in,
            proof=proof,
            address=request.remote_addr or "unknown",
            authenticator=context.authenticator,
        )
        return Response(status=204)


def _tokens(blueprint: Blueprint, context: ConsoleContext) -> None:
    @blueprint.post("/tokens")
    @documented("Create an API token for yourself", request=_CREATE_TOKEN,
                responses={201: ("The token; it is shown only this once.", TokenMadeSchema)}, problems=WRITING, security=OPERATOR)  # fmt: skip
    def create_token() -> Response:
        if not g.by_cookie:
            # Otherwise a stolen token could create another one that outlives its own expiry and revocation.
            raise Forbidden("a token can be created only by a signed-in person, not with another token")
        must_have_proved()
        given = load(_CREATE_TOKEN, without_nulls(json_body()))
        days = given.get("expires_days", DEFAULT_TOKEN_DAYS)
        issued = issue_token(
            context.pool, actor(), g.signed_in.session_id, label=given.get("label", ""), expires_days=days
        )
        listing = issued.listing
        return json_response(
            {
                "token": issued.token, "token_id": listing.token_id, "label": listing.label,
                "expires_at": listing.expires_at,
            },
            201,
        )  # fmt: skip

    @blueprint.get("/tokens")
    @documented("Your own tokens", responses={200: ("The list, without the tokens themselves.", TokenListSchema)},
                problems=READING, security=OPERATOR)  # fmt: skip
    def show_tokens() -> Response:
        who: SignedIn = g.signed_in
        return json_response({"tokens": list_tokens(context.pool, who.tenant_id, who.operator_id)})

    @blueprint.delete("/tokens/<token_id>")
    @documented("Revoke one of your own tokens", responses={204: ("The token is refused from now on.", None)},
                problems=(*READING, 404), security=OPERATOR)  # fmt: skip
    def delete_token(token_id: str) -> Response:
        revoke_token(context.pool, actor(), path_id(token_id, "token"))
        return Response(status=204)
