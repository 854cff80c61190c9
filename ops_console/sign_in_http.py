"""Signing in over HTTP: the part that the page and the API share."""

from __future__ import annotations

from typing import Any

from flask import Response, request

from ops_console import metrics
from ops_console.accounts.known_devices import KNOWN_SECONDS
from ops_console.accounts.sign_in import OpenedSession, PresentedCredentials, if_possible, sign_in, sign_out
from ops_console.context import ConsoleContext
from ops_console.identity import cookie_name, set_cookie
from sentinel.core.errors import RateLimited, Unauthenticated


def sign_in_request(context: ConsoleContext, given: dict[str, Any], *, kind: str) -> OpenedSession:
    """Sign in with `given` email, password, code?, tenant?, and count the result. `kind` is "page" or "api".

    Ends the session that this browser had until now. Raises `Unauthenticated` or `RateLimited`.
    """
    shown = PresentedCredentials(
        email=given["email"], password=given["password"], code=given.get("code"), tenant=given.get("tenant"),
        address=request.remote_addr or "unknown", user_agent=request.headers.get("User-Agent", ""),
        device=request.cookies.get(_device_name(context), ""), kind=kind,
    )  # fmt: skip
    try:
        opened = sign_in(context.pool, shown, context.authenticator)
    except (Unauthenticated, RateLimited) as error:
        metrics.SIGN_INS.labels(error.code).inc()
        raise
    metrics.SIGN_INS.labels("signed-in").inc()
    earlier = request.cookies.get(cookie_name(context.settings.insecure_cookies), "")
    if_possible(lambda: sign_out(context.pool, earlier))
    return opened


def set_session_cookie(context: ConsoleContext, response: Response, opened: OpenedSession) -> Response:
    """Set the session's cookie in the response."""
    set_cookie(context, response, opened.cookie, context.settings.absolute_seconds)
    return response


def remember_device(context: ConsoleContext, response: Response, opened: OpenedSession) -> None:
    """Set the known device's cookie: it grants no access, but gives this browser a sign-in throttle of its own."""
    if opened.device is not None:
        insecure = context.settings.insecure_cookies
        response.set_cookie(
            _device_name(context), opened.device, max_age=KNOWN_SECONDS, path="/", httponly=True, secure=not insecure,
            samesite="Strict",
        )  # fmt: skip


def _device_name(context: ConsoleContext) -> str:
    return cookie_name(context.settings.insecure_cookies) + "-device"
