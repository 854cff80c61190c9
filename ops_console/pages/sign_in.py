"""Signing in and out in a browser."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from flask import Blueprint, Response, request

from ops_console.accounts.sign_in import sign_out
from ops_console.api.request_schemas import SignInSchema
from ops_console.context import ConsoleContext
from ops_console.identity import check_origin, cookie_name, set_cookie
from ops_console.pages import shell
from ops_console.sign_in_http import remember_device, set_session_cookie, sign_in_request
from sentinel.core.errors import InvalidInput, RateLimited, Unauthenticated
from sentinel.platform.http.bodies import load

HOME = "/ops"
_SIGN_IN = SignInSchema()


def routes(pages: Blueprint, context: ConsoleContext) -> None:
    """Add the sign-in page and signing out."""

    @pages.get("/sign-in")
    def sign_in_page() -> Response:
        return _form(context)

    @pages.post("/sign-in")
    def sign_in_now() -> Response:
        check_origin(context)
        try:
            opened = sign_in_request(context, _given(), kind="page")
        except (InvalidInput, RateLimited, Unauthenticated) as error:
            return _form(context, shell.form_refusal(error))
        response = set_session_cookie(context, shell.back_to(own_address(request.form.get("next", ""))), opened)
        remember_device(context, response, opened)
        return response

    @pages.post("/sign-out")
    def sign_out_now() -> Response:
        sign_out(context.pool, request.cookies.get(cookie_name(context.settings.insecure_cookies), ""))
        response = shell.back_to("/ops/sign-in")
        set_cookie(context, response, "", 0)
        return response


def own_address(address: str) -> str:
    """Return the address if it is a page of this console, else the first page: a sign-in must never redirect to another site."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return HOME
    is_own = not parts.scheme and not parts.netloc and (parts.path == HOME or parts.path.startswith(HOME + "/"))
    return address if is_own and "\\" not in address and address.isprintable() else HOME


def _form(context: ConsoleContext, refusal: shell.FormRefusal | None = None) -> Response:
    typed = {name: request.form.get(name, "") for name in ("email", "tenant")}
    given = {**typed, "next": own_address(request.values.get("next", ""))}
    undone = request.method == "GET" and "undone" in request.args
    return shell.page(
        context, "sign_in.html", title="Sign in", refusal=refusal, given=given, undone=undone,
        once_more=given["next"] if _is_from_elsewhere() and not undone else None,
    )  # fmt: skip


def _is_from_elsewhere() -> bool:
    """Whether a link on another site led here, past the page that it names. Browsers leave out a `SameSite=Strict` cookie
    there, so nobody knows yet whether the person is signed in: a visit from this page will tell.
    """
    is_visit = request.method == "GET" and "next" in request.args
    return is_visit and request.headers.get("Sec-Fetch-Site") == "cross-site"


def _given() -> dict[str, Any]:
    typed = shell.typed()
    typed.pop("next", None)
    # Spaces at the ends are part of a password, and of no other field.
    return load(_SIGN_IN, {**typed, **({"password": request.form["password"]} if "password" in typed else {})})
