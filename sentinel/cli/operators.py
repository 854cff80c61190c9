"""`sentinel operators`: the people of a tenant and their roles. Admins change them on the console's page too.

With the login of the schema's owner (the embedded server's, or such a `SENTINEL_DATABASE_URL`) nothing waits for a
second administrator: that login can write every table anyway, and the first operators are created with it. With any
other login a change asks a second administrator, as on the console's page.
"""

from __future__ import annotations

import sys

import click

from ops_console.accounts.operator_changes import (
    change_role,
    confirm,
    create_operator,
    deactivate_operator,
    end_access_of_everybody,
    reactivate_operator,
    reset_second_factor,
)
from ops_console.accounts.operators import list_operators
from ops_console.accounts.passwords import make_password
from sentinel.authority.actor import ROLES
from sentinel.cli.common import json_option, open_pool, show, show_rows, tenant_of, tenant_option
from sentinel.core.errors import InvalidInput
from sentinel.core.wording import counted
from sentinel.platform.command_line import OneLineErrors
from sentinel.store.embedded import SUPERUSER

COLUMNS = ("email", "role", "active", "created_at", "operator_id")


@click.group(cls=OneLineErrors)
def group() -> None:
    """The people who approve, set halts and view the records."""


@group.command()
@click.argument("email")
@click.option(
    "--role",
    type=click.Choice(ROLES),
    required=True,
    help="viewer: view only; approver: decide approvals; admin: also lift halts and resolve operations in doubt.",
)
@click.option(
    "--password-stdin",
    is_flag=True,
    help="Read the person's password from standard input; without it, a one-time password to set their own with is created and shown once.",
)
@tenant_option
@json_option
def create(email: str, role: str, password_stdin: bool, tenant: str | None, as_json: bool) -> None:
    """Add an operator."""
    password = _password_on_stdin() if password_stdin else make_password()
    with open_pool(login=SUPERUSER) as pool:
        operator_id = create_operator(
            pool, tenant_of(pool, tenant), email=email, password=password, role=role, one_time=not password_stdin
        )
    made = {"operator_id": operator_id, "email": email.strip().lower(), "role": role}
    if password_stdin:
        show(made, as_json, f"{made['email']} is {role}.")
    else:
        told = f"{made['email']} is {role}. One-time password to set their own with, shown only once: {password}"
        show({**made, "password": password}, as_json, told)


def _password_on_stdin() -> str:
    """Return the first line of standard input. Raises `InvalidInput` where it is not UTF-8: nobody could sign in with it."""
    try:
        return sys.stdin.buffer.readline().rstrip(b"\r\n").decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidInput.of("password", "must be UTF-8") from None


@group.command("list")
@tenant_option
@json_option
def list_(tenant: str | None, as_json: bool) -> None:
    """List operators."""
    with open_pool(login=SUPERUSER) as pool:
        rows = list_operators(pool, tenant_of(pool, tenant))
    show_rows(rows, COLUMNS, as_json=as_json, empty="There is no operator yet.")


@group.command("set-role")
@click.argument("email")
@click.argument("role", type=click.Choice(ROLES))
@tenant_option
@json_option
def set_role(email: str, role: str, tenant: str | None, as_json: bool) -> None:
    """Change an operator's role, in force at the operator's next request."""
    with open_pool(login=SUPERUSER) as pool:
        change_role(pool, tenant_of(pool, tenant), email=email, role=role)
    show({"email": email, "role": role}, as_json, f"{email} is {role}.")


@group.command()
@click.argument("email")
@tenant_option
@json_option
def deactivate(email: str, tenant: str | None, as_json: bool) -> None:
    """Deactivate an operator: sessions and tokens end at their next request."""
    with open_pool(login=SUPERUSER) as pool:
        deactivate_operator(pool, tenant_of(pool, tenant), email=email)
    show({"email": email, "active": False}, as_json, f"{email} is deactivated.")


@group.command("sign-out-everybody")
@tenant_option
@json_option
def sign_out_everybody(tenant: str | None, as_json: bool) -> None:
    """End the sessions and tokens of every operator of the tenant; active operators may sign in again.

    Meant for use after restoring a backup, which revives sessions and tokens that were ended since it was made.
    """
    with open_pool(login=SUPERUSER) as pool:
        count = end_access_of_everybody(pool, tenant_of(pool, tenant))
    show({"operators": count}, as_json, f"The sessions and tokens of {counted(count, 'operator')} were ended.")


@group.command()
@click.argument("email")
@tenant_option
@json_option
def reactivate(email: str, tenant: str | None, as_json: bool) -> None:
    """Reactivate an operator, who may sign in again."""
    with open_pool(login=SUPERUSER) as pool:
        reactivate_operator(pool, tenant_of(pool, tenant), email=email)
    show({"email": email, "active": True}, as_json, f"{email} may sign in again.")


@group.command("confirm")
@click.argument("email")
@tenant_option
@json_option
def confirm_(email: str, tenant: str | None, as_json: bool) -> None:
    """Confirm that an account that an administrator made or changed is its owner's; on the console a second administrator does."""
    with open_pool(login=SUPERUSER) as pool:
        waited = confirm(pool, tenant_of(pool, tenant), email=email)
    told = (
        f"{email} is confirmed as a person of their own." if waited else f"{email} was not waiting for a confirmation."
    )
    show({"email": email, "confirmed": True}, as_json, told)


@group.command("reset-second-factor")
@click.argument("email")
@tenant_option
@json_option
def reset_second_factor_(email: str, tenant: str | None, as_json: bool) -> None:
    """Remove the second factor of an operator who lost it; their sessions and tokens end, and the password alone signs in again."""
    with open_pool(login=SUPERUSER) as pool:
        was_there = reset_second_factor(pool, tenant_of(pool, tenant), email=email)
    told = f"The second factor of {email} was removed." if was_there else f"{email} had no second factor."
    show({"email": email, "was_there": was_there}, as_json, told)
