"""The page of a person's own account: sessions, tokens, password and second factor."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial

import segno
from flask import Blueprint, Response, g, request
from markupsafe import Markup

from ops_console.accounts.operator_tokens import MOST_DAYS, TokenListing, issue_token, list_tokens, revoke_token
from ops_console.accounts.own_account import change_own_password, end_own_session
from ops_console.accounts.sessions import end_others, list_sessions
from ops_console.accounts.totp import (
    address_of,
    begin_second_factor,
    confirm_second_factor,
    remove_second_factor,
)
from ops_console.api.rendering import path_id
from ops_console.api.request_schemas import CreateTokenSchema
from ops_console.api.session import DEFAULT_TOKEN_DAYS
from ops_console.context import ConsoleContext
from ops_console.identity import ACCOUNT_PAGE, actor, must_set_up_second_factor
from ops_console.pages import shell
from ops_console.pages.sign_in import own_address
from ops_console.pages.step_up import needs_proof, prove
from sentinel.core.errors import InvalidInput, SentinelError
from sentinel.core.wording import counted
from sentinel.platform.http.bodies import StrictSchema, Text, load
from sentinel.store.queries import database_time

SECOND_FACTOR = f"{ACCOUNT_PAGE}/second-factor"
MOST_TOKENS = 50
"""How many tokens in use, and how many revoked or expired ones, the page lists, the newest; a program may make one each time it runs."""


class PasswordSchema(StrictSchema):
    """The old password, and the new one twice."""

    old = Text(most=256, least=1, required=True)
    new = Text(most=256, least=1, required=True)
    again = Text(most=256, least=1, required=True)


class ConfirmCodeSchema(StrictSchema):
    """A code of the second factor that is being set up."""

    code = Text(most=32, least=1, required=True)


_PASSWORD, _CODE, _TOKEN = PasswordSchema(), ConfirmCodeSchema(), CreateTokenSchema()


def routes(pages: Blueprint, context: ConsoleContext) -> None:
    """Add the account page, its forms, and the page that sets up a second factor."""
    again = partial(_again, context)

    @pages.get("/account")
    def account() -> Response:
        return _page(context)

    @pages.get("/account/prove")
    def account_proving() -> Response:
        return _proving(context)

    @pages.post("/account/prove")
    @shell.shows(lambda refusal: _proving(context, refusal))
    def account_prove() -> Response:
        def do() -> str:
            prove(context)
            return "Confirmed. You can continue."

        return shell.attempt(
            context,
            do,
            again=lambda refusal: _proving(context, refusal),
            then=own_address(request.form.get("next", "")),
        )

    @pages.post("/account/password")
    @shell.shows(again("password"))
    def account_password() -> Response:
        return _act(context, "password", lambda: _change_password(context))

    @pages.post("/account/sessions/<session_id>/end")
    @shell.shows(again("sessions"))
    def account_end_session(session_id: str) -> Response:
        return _act(context, "sessions", lambda: _end(context, session_id))

    @pages.post("/account/sessions/end-others")
    @shell.shows(again("sessions"))
    def account_end_others() -> Response:
        return _act(context, "sessions", lambda: _end_others(context))

    @pages.post("/account/tokens")
    @shell.shows(again("tokens"))
    def account_make_token() -> Response:
        return _make_token(context)

    @pages.post("/account/tokens/<token_id>/revoke")
    @shell.shows(again("tokens"))
    def account_revoke_token(token_id: str) -> Response:
        return _act(context, "tokens", lambda: _revoke(context, token_id))

    _second_factor(pages, context)


def _second_factor(pages: Blueprint, context: ConsoleContext) -> None:
    again = partial(_again, context)

    @pages.get("/account/second-factor")
    def account_second_factor() -> Response:
        return _setting_up(context)

    @pages.post("/account/second-factor")
    @shell.shows(again("second-factor"))
    def account_begin_second_factor() -> Response:
        def begin() -> str:
            prove(context)
            begin_second_factor(context.pool, context.authenticator.vault, actor(), anew=True)
            return "Now enter the secret into your app and confirm it."

        return shell.attempt(
            context, begin, again=lambda refusal: _page(context, refusal, "second-factor"), then=SECOND_FACTOR
        )

    @pages.post("/account/second-factor/confirm")
    @shell.shows(lambda refusal: _setting_up(context, refusal))
    def account_confirm_second_factor() -> Response:
        def confirm() -> str:
            prove(context)
            confirm_second_factor(
                context.pool, context.authenticator.vault, actor(), load(_CODE, shell.typed())["code"]
            )
            return "From now on, signing in asks for a code."

        return shell.attempt(context, confirm, again=lambda refusal: _setting_up(context, refusal), then=ACCOUNT_PAGE)

    @pages.post("/account/second-factor/remove")
    @shell.shows(again("second-factor"))
    def account_remove_second_factor() -> Response:
        def remove() -> str:
            prove(context)
            remove_second_factor(context.pool, actor())
            return "Your second factor is removed."

        return _act(context, "second-factor", remove)


def _again(context: ConsoleContext, about: str) -> shell.Again:
    """Return what shows the page again with the refusal at the part `about`; ids in the address (session, token) are not needed."""
    return lambda refusal, **_ids: _page(context, refusal, about)


def _act(context: ConsoleContext, about: str, do: Callable[[], str]) -> Response:
    return shell.attempt(context, do, again=lambda refusal: _page(context, refusal, about), then=ACCOUNT_PAGE)


def _page(context: ConsoleContext, refusal: shell.FormRefusal | None = None, about: str = "") -> Response:
    who = g.signed_in
    now = database_time(context.pool)
    usable, over = _newest_tokens(list_tokens(context.pool, who.tenant_id, who.operator_id), now)
    return shell.page(
        context, "account.html", title="Your account", refusal=refusal, about=about,
        given=request.form, can_have_second_factor=context.authenticator.vault.usable, most_days=MOST_DAYS,
        must_have_second_factor=must_set_up_second_factor(context, who),
        sessions=list_sessions(
            context.pool, who.tenant_id, who.operator_id, idle_seconds=context.settings.idle_seconds
        ),
        token_id=shell.form_id("token_id", refusal),
        tokens=[*usable[:MOST_TOKENS], *over[:MOST_TOKENS]], left_out=max(len(usable), len(over)) > MOST_TOKENS, most=MOST_TOKENS,
        now=now,
    )  # fmt: skip


def _newest_tokens(known: list[TokenListing], now: datetime) -> tuple[list[TokenListing], list[TokenListing]]:
    """The tokens in use, and those that are revoked or expired; newest first."""
    usable: list[TokenListing] = []
    over: list[TokenListing] = []
    for one in reversed(known):
        is_over = one.revoked_at is not None or (one.expires_at is not None and one.expires_at <= now)
        (over if is_over else usable).append(one)
    return usable, over


def _proving(context: ConsoleContext, refusal: shell.FormRefusal | None = None) -> Response:
    """The page that asks for a step-up and then goes back to the page before."""
    return shell.page(
        context, "prove.html", title="Confirm it is you", refusal=refusal,
        next=own_address(request.values.get("next", "")),
    )  # fmt: skip


def _setting_up(context: ConsoleContext, refusal: shell.FormRefusal | None = None) -> Response:
    """The page with the secret as text and QR code; without a recent step-up, the account page, which asks for one."""
    if needs_proof() or g.signed_in.has_second_factor:
        return _page(context, refusal, "second-factor")
    secret = begin_second_factor(context.pool, context.authenticator.vault, actor())
    return shell.page(
        context, "second_factor.html", title="Second factor", refusal=refusal,
        secret=secret, picture=_picture(address_of(secret, actor().email)),
    )  # fmt: skip


def _picture(text: str) -> Markup:
    """A QR code as SVG. Black on white in dark mode too, because cameras need that."""
    drawn = segno.make(text, error="m").svg_inline(scale=5, border=4, light="#fff", title="The secret as a QR code")
    return Markup(drawn)  # noqa: S704 (our own drawing; the text is in it only as dots)


def _change_password(context: ConsoleContext) -> str:
    given = load(_PASSWORD, {**shell.typed(), **_exactly("old", "new", "again")})
    if given["new"] != given["again"]:
        raise InvalidInput.of("again", "differs from the new password")
    change_own_password(
        context.pool, g.signed_in, old=given["old"], new=given["new"], address=request.remote_addr or "unknown",
        authenticator=context.authenticator,
    )  # fmt: skip
    return "Your password was changed and your other sessions have ended. Your API tokens stay valid until you revoke them."


def _exactly(*names: str) -> dict[str, str]:
    # Taken as sent: spaces at the ends belong to a password, and `shell.typed` strips them.
    return {name: request.form[name] for name in names if request.form.get(name)}


def _end(context: ConsoleContext, session_id: str) -> str:
    end_own_session(context.pool, g.signed_in, path_id(session_id, "session"))
    return "The session has ended."


def _end_others(context: ConsoleContext) -> str:
    count = end_others(context.pool, g.signed_in)
    return f"{counted(count, 'other session was', 'other sessions were')} ended."


def _make_token(context: ConsoleContext) -> Response:
    """Make a token and show it in this answer, once; nothing is stored that could show it again."""
    try:
        prove(context)
        typed = shell.typed()
        token_id = path_id(typed.pop("token_id", ""), "token")
        days = typed.pop("expires_days", str(DEFAULT_TOKEN_DAYS))
        number = shell.whole_number(days)
        given = load(_TOKEN, {**typed, "expires_days": days if number is None else number})
        issued = issue_token(
            context.pool,
            actor(),
            g.signed_in.session_id,
            label=given.get("label", ""),
            expires_days=given["expires_days"],
            token_id=token_id,
        )
    except SentinelError as error:
        return _page(context, shell.form_refusal(error), "tokens")
    return shell.page(context, "shown_once.html", title="Token created", secret=issued.token, what="token",
                      about=f"It ends in {counted(given['expires_days'], 'day')} and can do what you can", back=ACCOUNT_PAGE)  # fmt: skip


def _revoke(context: ConsoleContext, token_id: str) -> str:
    revoke_token(context.pool, actor(), path_id(token_id, "token"))
    return "The token is refused from now on."
