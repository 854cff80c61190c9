"""Who calls an operator route: identified by session cookie or operator token, before anything else is looked at.

Without either, every operator path, known or not and for every method, answers the same 401. On an unsafe method a
cookie counts only with its session's CSRF token and from our own origin. A token needs neither, because no browser
sends it on its own, but it may not use the pages' forms: creating and removing keys, people and second factors takes a
signed-in person.
"""

from __future__ import annotations

import hmac
from urllib.parse import quote, urlencode, urlsplit

from flask import Flask, Response, current_app, g, redirect, request
from werkzeug.exceptions import MethodNotAllowed
from werkzeug.wrappers import Response as AnyResponse

from ops_console.accounts.operator_tokens import token_owner
from ops_console.accounts.sessions import SignedIn
from ops_console.accounts.sign_in import session_of
from ops_console.accounts.step_up import needs_proof
from ops_console.context import ConsoleContext
from sentinel.authority.actor import Actor
from sentinel.core.errors import (
    Forbidden,
    PasswordChangeRequired,
    SecondFactorRequired,
    StepUpRequired,
    Unauthenticated,
)

SIGN_IN = "/ops/api/session"
SIGN_IN_PAGE = "/ops/sign-in"
SIGN_OUT = "/ops/sign-out"
ACCOUNT_PAGE = "/ops/account"
PUBLIC = "/ops/api/live/"
# Open to a person who lacks the second factor that the settings require.
_SETTING_UP = (ACCOUNT_PAGE, ACCOUNT_PAGE + "/", SIGN_OUT, SIGN_IN)
# Open to a person whose password was set by somebody else.
_SETTING_PASSWORD = (
    ACCOUNT_PAGE, ACCOUNT_PAGE + "/", ACCOUNT_PAGE + "/password", SIGN_OUT, SIGN_IN, SIGN_IN + "/password",
)  # fmt: skip
_SAFE = ("GET", "HEAD", "OPTIONS")


class FormOfAnotherSession(Forbidden):
    """A form of our own pages with the CSRF token of an earlier session, from a tab that was left open."""


def cookie_name(insecure: bool) -> str:
    """The session cookie's name. With the `__Host-` prefix browsers insist on https, this host and no domain; plain http cannot have it."""
    return "sentinel" if insecure else "__Host-sentinel"


def needs_operator(path: str, method: str) -> bool:
    """Whether a request needs an operator: everything under /ops does, except the live feed and signing in."""
    if path != "/ops" and not path.startswith("/ops/"):
        return False
    return not path.startswith(PUBLIC) and (path, method) != (SIGN_IN, "POST") and path != SIGN_IN_PAGE


def install(app: Flask, context: ConsoleContext) -> None:
    """Require an operator before routing errors, validation or any view."""

    @app.before_request
    def require_operator() -> AnyResponse | None:
        if not needs_operator(request.path, request.method):
            return None
        try:
            who, by_cookie = identify(context)
        except Unauthenticated:
            if is_browser_visit():
                return redirect(f"{SIGN_IN_PAGE}?{urlencode({'next': request.full_path.rstrip('?')})}", 303)
            if _is_form() and request.path == SIGN_OUT:
                return redirect(SIGN_IN_PAGE, 303)
            if _is_form():
                return redirect(f"{SIGN_IN_PAGE}?{urlencode({'next': request.path, 'undone': 'yes'})}", 303)
            raise
        if request.method not in _SAFE:
            if by_cookie:
                check_csrf(context, who)
            elif not _is_api():
                # Otherwise a stolen token could create credentials that outlive its own expiry and revocation.
                raise Forbidden("the pages' forms need a signed-in person; with a token, use the routes under /ops/api")
        g.signed_in, g.by_cookie = who, by_cookie
        if isinstance(request.routing_exception, MethodNotAllowed) and is_browser_visit():
            return redirect(page_of(request.path), 303)
        set_up_first = what_to_set_up_first(context, who)
        if set_up_first is None:
            return None
        if is_browser_visit():
            return redirect(ACCOUNT_PAGE, 303)
        raise set_up_first


def what_to_set_up_first(context: ConsoleContext, who: SignedIn) -> Forbidden | None:
    """Return why this request is refused until the person sets their own password or a second factor; None if it is
    allowed.

    Every answer that shows more than the person's own account has to check this, also a refusal that shows a form
    again.
    """
    if who.must_set_password:
        if request.path in _SETTING_PASSWORD:
            return None
        return PasswordChangeRequired(
            "somebody else set your password; set your own first, on the page /ops/account or by POST /ops/api/session/password"
        )
    if must_set_up_second_factor(context, who) and not _sets_up(request.path):
        return SecondFactorRequired("set up a second factor first, on the page /ops/account")
    return None


def page_of(path: str) -> str:
    """Return the address of the nearest page above an act's. A refused form leaves its POST address in the browser, and
    opening that again is a GET of an address that has no page.
    """
    urls = current_app.create_url_adapter(request)
    while urls is not None and "/" in path.strip("/"):
        path = path.rpartition("/")[0]
        if urls.test(path, "GET"):
            return quote(path)
    return "/ops"


def must_set_up_second_factor(context: ConsoleContext, who: SignedIn) -> bool:
    """Whether the settings require a second factor of this person's role and they have none."""
    return context.settings.requires_second_factor(who.role) and not who.has_second_factor


def _sets_up(path: str) -> bool:
    return path in _SETTING_UP or path.startswith((ACCOUNT_PAGE + "/second-factor", SIGN_IN + "/"))


def is_browser_visit() -> bool:
    """Whether a browser opens a page (GET for HTML), so that a redirect to the sign-in page serves better than a problem document."""
    wants_html = request.accept_mimetypes.accept_html and "text/html" in request.headers.get("Accept", "")
    return wants_html and request.method == "GET" and not _is_api()


def _is_form() -> bool:
    """Whether a page's form was sent: if its session has ended, the sign-in page says so instead of a problem document."""
    wants_html = "text/html" in request.headers.get("Accept", "")
    return wants_html and request.method == "POST" and not _is_api()


def _is_api() -> bool:
    return request.path.startswith("/ops/api/")


def identify(context: ConsoleContext) -> tuple[SignedIn, bool]:
    """Return (the person, whether by cookie). Raises `Unauthenticated`."""
    if "Authorization" in request.headers:
        # With an Authorization header only the token counts: a wrong token does not fall back to the cookie.
        scheme, _, token = request.headers["Authorization"].partition(" ")
        who = token_owner(context.pool, token.strip()) if scheme.lower() == "bearer" else None
        by_cookie = False
    else:
        cookie = request.cookies.get(cookie_name(context.settings.insecure_cookies), "")
        who = (
            session_of(context.pool, cookie, context.authenticator.terms, is_use=not _refreshes_itself())
            if cookie
            else None
        )
        by_cookie = True
    if who is None:
        raise Unauthenticated
    return who, by_cookie


def _refreshes_itself() -> bool:
    """Whether an open page polls by itself (`shell.refreshes_itself`), which does not count as use of the session."""
    view = current_app.view_functions.get(request.endpoint or "")
    return getattr(view, "refreshes_itself", False)


def check_csrf(context: ConsoleContext, who: SignedIn) -> None:
    """Raise `Forbidden` unless the request comes from our origin with the session's CSRF token, as a header or a form
    field.

    Raises `FormOfAnotherSession` for a form of ours that still has an earlier session's token.
    """
    check_origin(context)
    given = request.headers.get("X-CSRF-Token", "") or _form_token()
    if who.csrf_token is None or not hmac.compare_digest(given.encode(), who.csrf_token.encode()):
        if _is_left_open(context, who):
            g.signed_in, g.by_cookie = who, True
            raise FormOfAnotherSession(
                "Your session was renewed in another tab. Nothing was changed: check the form and submit it again."
                f" You are signed in as {who.email}."
            )
        raise Forbidden("X-CSRF-Token is missing or not this session's")


def _is_left_open(context: ConsoleContext, who: SignedIn) -> bool:
    """Whether a refused CSRF token came with a form that the browser says is from our site, sent by a person who may see pages."""
    # Without either header, only the token could have distinguished our form from another site's.
    says_ours = "Origin" in request.headers or request.headers.get("Sec-Fetch-Site") == "same-origin"
    return says_ours and what_to_set_up_first(context, who) is None and _is_form() and _form_token() != ""


def _form_token() -> str:
    """Return the form's hidden `csrf` field; "" for the JSON API, which accepts only the header."""
    return "" if _is_api() else request.form.get("csrf", "")


def check_origin(context: ConsoleContext) -> None:
    """Raise `Forbidden` for a request that a browser says comes from another site."""
    if request.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
        raise Forbidden("requests from other sites are refused")
    origin = request.headers.get("Origin")
    if origin is None:
        return
    ours = context.settings.origin or f"{request.scheme}://{request.host}"
    if (site := _site(origin)) is None or site != _site(ours):
        raise Forbidden("requests from other origins are refused")


def _site(origin: str) -> tuple[str, str] | None:
    """Return (scheme, host and port) of an origin; None for text that is no address, which matches no site."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return None
    return parts.scheme, parts.netloc.lower()


def actor() -> Actor:
    """The person this request acts for."""
    who: SignedIn = g.signed_in
    return Actor(who.tenant_id, who.operator_id, who.email, who.role)


def must_have_proved() -> None:
    """Raise `StepUpRequired` if a page's session was not stepped up in the last minutes: a stolen cookie alone decides nothing."""
    if needs_proof(g.signed_in, by_form=False):
        raise StepUpRequired(
            "confirm your identity first: POST /ops/api/session/step-up with the code of your second factor, or with the password if you have none"
        )


def set_cookie(context: ConsoleContext, response: Response, value: str, max_age: int) -> None:
    """Set the session cookie, for `max_age` seconds: not readable by scripts, not sent with requests from other sites."""
    insecure = context.settings.insecure_cookies
    response.set_cookie(
        cookie_name(insecure), value, max_age=max_age, path="/", httponly=True, secure=not insecure, samesite="Strict"
    )
