"""Who calls an operator route: a session cookie or an operator's token, asked for before anything else is looked at.

Without one every operator path, known or not, whatever the method, answers the same 401. A cookie is only believed on an
unsafe method together with its CSRF token and from our own origin; a token is never sent by a browser on its own, and does
nothing by the pages' forms: what makes keys, people and second factors, or takes them away, is a signed-in person's.
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
ACCOUNT_PAGE = "/ops/account"
PUBLIC = "/ops/api/live/"
# What one reaches without the second factor that the settings ask for.
_SETTING_UP = (ACCOUNT_PAGE, ACCOUNT_PAGE + "/", "/ops/sign-out", SIGN_IN)
# What one reaches with a password that somebody else set.
_SETTING_PASSWORD = (
    ACCOUNT_PAGE, ACCOUNT_PAGE + "/", ACCOUNT_PAGE + "/password", "/ops/sign-out", SIGN_IN, SIGN_IN + "/password",
)  # fmt: skip
_SAFE = ("GET", "HEAD", "OPTIONS")


class FormOfAnotherSession(Forbidden):
    """A page's form of ours that carries the token of a session before this one: of a tab that was left open."""


def cookie_name(insecure: bool) -> str:
    """The `__Host-` prefix makes browsers insist on https, this host and no domain; plain http cannot have it."""
    return "sentinel" if insecure else "__Host-sentinel"


def needs_operator(path: str, method: str) -> bool:
    """Whether a path is the operators': everything under /ops but the live feed and signing in itself."""
    if path != "/ops" and not path.startswith("/ops/"):
        return False
    return not path.startswith(PUBLIC) and (path, method) != (SIGN_IN, "POST") and path != SIGN_IN_PAGE


def install(app: Flask, context: ConsoleContext) -> None:
    """Ask for an operator before routing errors, validation or any view."""

    @app.before_request
    def require_operator() -> AnyResponse | None:
        if not needs_operator(request.path, request.method):
            return None
        try:
            who, by_cookie = identify(context)
        except Unauthenticated:
            if is_browser_visit():
                return redirect(f"{SIGN_IN_PAGE}?{urlencode({'next': request.full_path.rstrip('?')})}", 303)
            if _is_form():
                return redirect(f"{SIGN_IN_PAGE}?{urlencode({'next': request.path, 'undone': 'yes'})}", 303)
            raise
        if request.method not in _SAFE:
            if by_cookie:
                check_csrf(context, who)
            elif not _is_api():
                # Else a stolen token could outlive its own end and revocation.
                raise Forbidden(
                    "the pages' forms are for a signed-in person; a token acts by the routes under /ops/api"
                )
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
    """Why this request is not open to a person yet: a password or a second factor of their own is missing. None where it is.

    Every answer that shows somebody more than their own account asks here, a refusal that shows a form again too.
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
    """The page that an act's address belongs to, as a link: a refused act leaves its address behind, and people reload."""
    urls = current_app.create_url_adapter(request)
    while urls is not None and "/" in path.strip("/"):
        path = path.rpartition("/")[0]
        if urls.test(path, "GET"):
            return quote(path)
    return "/ops"


def must_set_up_second_factor(context: ConsoleContext, who: SignedIn) -> bool:
    """Whether this person has none and the settings require one of their role."""
    return context.settings.requires_second_factor(who.role) and not who.has_second_factor


def _sets_up(path: str) -> bool:
    return path in _SETTING_UP or path.startswith((ACCOUNT_PAGE + "/second-factor", SIGN_IN + "/"))


def is_browser_visit() -> bool:
    """Whether a person is opening a page, who is better sent to the sign-in page than shown a problem document."""
    wants_html = request.accept_mimetypes.accept_html and "text/html" in request.headers.get("Accept", "")
    return wants_html and request.method == "GET" and not _is_api()


def _is_form() -> bool:
    """Whether a page's form was sent: whose session ended meanwhile is told so on the sign-in page, not by a document."""
    wants_html = "text/html" in request.headers.get("Accept", "")
    return wants_html and request.method == "POST" and not _is_api()


def _is_api() -> bool:
    return request.path.startswith("/ops/api/")


def identify(context: ConsoleContext) -> tuple[SignedIn, bool]:
    """(the person, whether by cookie). Raises `Unauthenticated`."""
    if "Authorization" in request.headers:
        # Only what was presented counts: a wrong token is not mended by a cookie that came along.
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
    """Whether an open page asks, and not a person (`shell.refreshes_itself`)."""
    view = current_app.view_functions.get(request.endpoint or "")
    return getattr(view, "refreshes_itself", False)


def check_csrf(context: ConsoleContext, who: SignedIn) -> None:
    """Raise `Forbidden` unless the request is ours: origin, and the session's token in the header or the page's form."""
    check_origin(context)
    given = request.headers.get("X-CSRF-Token", "") or _form_token()
    if who.csrf_token is None or not hmac.compare_digest(given.encode(), who.csrf_token.encode()):
        if _is_left_open(context, who):
            g.signed_in, g.by_cookie = who, True
            raise FormOfAnotherSession(
                "Your session was renewed in another tab. Nothing was done: look again, and say it again."
                f" You are signed in as {who.email}."
            )
        raise Forbidden("X-CSRF-Token is missing or not this session's")


def _is_left_open(context: ConsoleContext, who: SignedIn) -> bool:
    """Whether a refused token came with a form that the browser itself says is ours, from somebody whom pages are open to."""
    # Where neither header came, the token was all that could have told our form from another site's.
    says_ours = "Origin" in request.headers or request.headers.get("Sec-Fetch-Site") == "same-origin"
    return says_ours and what_to_set_up_first(context, who) is None and _is_form() and _form_token() != ""


def _form_token() -> str:
    """A page's hidden field; the JSON API takes the header alone."""
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
    """(scheme, host and port); None of what is no address, which is nobody's site."""
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
    """Raise `StepUpRequired` where a page's session has not just proved who holds it: a stolen cookie decides nothing."""
    if needs_proof(g.signed_in, by_form=False):
        raise StepUpRequired(
            "prove who you are first: POST /ops/api/session/step-up with the code of your second factor, or the password where there is none"
        )


def set_cookie(context: ConsoleContext, response: Response, value: str, max_age: int) -> None:
    """Hand a session to the browser: not readable by scripts, not sent along from other sites."""
    insecure = context.settings.insecure_cookies
    response.set_cookie(
        cookie_name(insecure), value, max_age=max_age, path="/", httponly=True, secure=not insecure, samesite="Strict"
    )
