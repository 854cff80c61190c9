"""The documented table of settings, made from the fields themselves: `python -m tests.support.settings_table`.

Each program's settings are a dataclass whose fields carry the variable's name and meaning, so that the table cannot say
anything else than the program does.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import yaml
from marshmallow.validate import OneOf, Range

from ops_console.settings import ConsoleSettings
from sentinel.authority.settings import Settings
from sentinel.export.settings import ExportSettings
from sentinel.platform.resources import policies_dir
from sentinel.platform.secret_files import SECRETS
from worker.orders.settings import OrderReviewSettings
from worker.refunds.settings import SPARE_CONNECTIONS, WorkerSettings

_HEAD = """# Settings

Environment variables, all optional unless the text says otherwise. Made from the code by `make docs`; edit the fields'
texts there. An empty variable counts as not set, unless its text says otherwise. If a setting is missing, malformed or unsafe, the program does not start, and names all such settings at once.
"""


def programs() -> list[tuple[str, type[Any]]]:
    """(title, settings class) of every program, in the order in which one meets them."""
    return [
        ("Authority", Settings), ("Refund worker", WorkerSettings), ("Order intake", OrderReviewSettings),
        ("Console and public board", ConsoleSettings),
        ("Sender of events", ExportSettings),
    ]  # fmt: skip


_COLUMNS = "| Variable | Default | Values | Meaning |\n|---|---|---|---|\n"

_SOURCES = """
## Senders of orders

`order_sources.yaml` names the variables that hold a sender's secret and a look-up's key (`secret`, `old_secret`, `key`);
these are the variables of the shipped file. A sender whose secret is not set is closed: its deliveries are refused. A secret
must have at least 16 bytes, for Standard Webhooks 24. If the secret of `demo` is not set, `sentinel demo` makes one and keeps
it in its data folder.

"""

_FILES = """
## Secrets in files

Docker and Kubernetes provide secrets as files. For a variable that holds a secret, the same name with `_FILE` names a file that
contains it: `SENTINEL_DATABASE_URL_FILE=/run/secrets/database_url`. The file has one line of text and is read once, when the program
starts. A file that is unreadable or empty is refused, and so is setting both variables. This applies to {secrets}, and to the variables
that `order_sources.yaml` names.
"""

_EMBEDDED = f"""
## Embedded PostgreSQL

{_COLUMNS}| `SENTINEL_EMBEDDED_DATABASE` | `on` | Set to `off` with a database of your own: a program or command without a database address then starts no embedded one, and names the missing variable. |
| `SENTINEL_PG_BIN` | – | Folder with the `postgres` and `initdb` to use, instead of searching for them. |
| `TMPDIR` | `/tmp` | Where the folder of the server's socket is made; if the path is too long for a socket, `/tmp` is used. |

Each program logs in as its own role with its own password, kept with mode 0600 in `postgres/passwords` of the data folder.
No account of the machine can log in without a password. A program that is started by hand on the data folder reads its own.
"""

_COMMANDS = f"""
## Commands

{_COLUMNS}| `SENTINEL_SCRATCH_DATABASE_URL` | – | Address of the server on which `sentinel gates run` creates its scratch database; its login must be able to create databases and roles. Default: the server of `SENTINEL_DATABASE_URL` if its login can do that, else an embedded one. |
"""

_LOGINS = """
## Logins of the database

Each program acts as one role, and its login must not be able to become another: `sentinel_authority`, `sentinel_worker`, `sentinel_orders`,
`sentinel_console`, `sentinel_exporter`, `sentinel_public`, `board_reader`. Either let the role itself log in (`alter role sentinel_worker login password '…'`), or create
a login of your own and grant it only that role. At its start and in `/readyz`, a program checks its own connection: the login, the roles
it can become and its time limits. It refuses a login that is a superuser, can create roles, or is a member of `sentinel_owner`, and
names it. No program connects as an administrator. These commands do: `sentinel migrate`, `sentinel demo` on a database of your own, which it migrates, and
`sentinel gates run` where it creates its scratch database on your server. `sentinel tenants`, `operators`, `keys` and `webhooks` may: with the login of the
schema's owner, their changes do not wait for a second administrator ([deployment.md](deployment.md#first-people-and-keys)).

Each role has a connection limit that covers what its program needs. `sentinel migrate` sets it once, and keeps a limit that you set:

| Role | Connections | For |
|---|---|---|
| `sentinel_authority` | 96 | `SENTINEL_PROCESSES` × `SENTINEL_POOL_SIZE`, 12 as shipped, for each authority |
| `sentinel_worker` | 24 | `WORKER_LANES` + %(spare)d, %(opened)d as shipped, for each worker; commands |
| `sentinel_orders` | 40 | `SENTINEL_ORDERS_PROCESSES` × `SENTINEL_ORDERS_POOL_SIZE`, 16 as shipped |
| `sentinel_console` | 24 | `SENTINEL_CONSOLE_PROCESSES` × `SENTINEL_CONSOLE_POOL_SIZE`, 8 as shipped, the same for a ledger elsewhere; commands |
| `sentinel_public` | 8 | `SENTINEL_BOARD_PROCESSES` × `SENTINEL_BOARD_POOL_SIZE`, 4 as shipped, the same for a ledger elsewhere |
| `sentinel_exporter` | 8 | `SENTINEL_EXPORT_THREADS` + 1, 5 as shipped, for each sender of events; commands |
| `board_reader` | 12 | (`SENTINEL_CONSOLE_PROCESSES` + `SENTINEL_BOARD_PROCESSES`) × `SENTINEL_BOARD_POOL_SIZE`, 8 as shipped |

To raise a limit: `alter role sentinel_authority connection limit 160`. A limit of -1, PostgreSQL's default for a role, counts as not
set, and the next `sentinel migrate` sets it; for no limit, set a large number such as 100000. A login of your own needs its own limit. A
program whose pools are larger than its login's limit does not start.

**Behind a pooler.** A pooler such as pgbouncer in transaction pooling mode shares one server connection among many clients:
start-up options of a connection are lost, and a prepared statement may belong to another client. With
`SENTINEL_DATABASE_POOLER=transaction` no statement is prepared and no start-up options are sent; role and time limits are set on the
login. `sentinel migrate` sets them on the programs' own roles. A login of your own needs them too:

```sql
alter role mine set role = 'sentinel_authority';
alter role mine set statement_timeout = '5s';
alter role mine set lock_timeout = '2s';
alter role mine set idle_in_transaction_session_timeout = '10s';
alter role mine set default_transaction_isolation = 'read committed';
alter role mine set timezone = 'UTC';
```

A program detects a pooler that is not declared, and does not start. `sentinel migrate` must connect to PostgreSQL directly.
"""

_ROTATION = """
## Replacing secrets

With the steps in this order, nothing is refused in between. A program reads its environment once, at start. "Restart" means one
process after the other: each finishes the work in progress, and work that waits for a stopped process is not lost.

| Secret | Two at once? | Steps |
|---|---|---|
| Agent keys: `SENTINEL_REFUND_AGENT_API_KEY`, `SENTINEL_ORDERS_API_KEY`, those of other agents | yes, for the overlap | 1. `sentinel keys rotate KEY_ID --overlap-hours 24` prints the successor, with the same rights. 2. Put it into the program's environment (or key file) and restart. 3. Check with `sentinel keys list` that the old key is no longer used. 4. The old key expires after the overlap; `sentinel keys revoke KEY_ID` ends it earlier, within a second. A worker whose key was refused meanwhile loses no row: its rows wait |
| A sender's webhook secret (`order_sources.yaml`) | yes, until the moment you name | 1. Move the present value to a second variable and name it as `old_secret: {env: …, until: …}`. 2. Put the new value into the variable of `secret`; restart the intake. Signatures by both are valid now. 3. Change the secret at the sender. 4. After `until` only the new secret is valid; remove `old_secret` |
| `SENTINEL_SECRET_KEYS` (permits) | yes, comma separated: the first signs, all verify | 1. Where `CONFIRM_SECRETS` or `SENTINEL_SECOND_FACTOR_SECRETS` is not set, set it to the present value first, because both default to this secret. 2. Append the new secret at the end; restart every authority. 3. Move it to the front; restart again. 4. After the life of a permit (`SENTINEL_PERMIT_SECONDS`), and once no refund in progress has an older permit (the page Ledger shows no older row with status ALLOWED), remove the old one and restart. A refund that still has one ends in doubt (`start_unconfirmed`), for a person |
| `CONFIRM_SECRETS` (customers' links) | yes, comma separated: the first signs, all verify | 1. Where a console has this secret and no `SENTINEL_SECOND_FACTOR_SECRETS`, which defaults to it, set that to the present value first. 2. Append the new one at the public board, which serves the confirm page, and restart it. 3. Put it first at the worker and restart it. 4. Put it first at the board and restart it. 5. Remove the old one everywhere once the last link signed with it has expired (`CONFIRM_EXPIRES_SECONDS`) |
| `SENTINEL_SECOND_FACTOR_SECRETS` | yes, comma separated: the first encrypts, all decrypt | 1. Append the new one at every console and restart each. 2. Put it first at every console and restart each: a second factor is encrypted with it when its owner next signs in with a code. 3. Remove the old one once everybody has signed in (the page Operators shows each person's last sign-in). A person whose second factor no secret can decrypt is refused as with a wrong code, and the log says `second_factor_unreadable`; `sentinel operators reset-second-factor EMAIL`, or an administrator on that person's page, lets them set up a new one |
| `SENTINEL_PUBLIC_ID_SECRETS` | yes, newest first | 1. Put the new one first at the public board, the console and where `sentinel proof compare` and `sentinel public-ids` are run, and restart the programs: refunds, ledger entries and agents get new public ids, also in earlier decisions, whose public proofs therefore get another hash. Operators can still look up the old ids; `sentinel proof compare` recognises an earlier public proof as long as the old secret is listed after the new one. Without the setting the database keeps a secret, and nothing has to be replaced |
| Session cookies | not needed: no secret signs them | A cookie is a random value whose hash the database keeps; signing out ends it |
| Database passwords | two logins, each with one | At once: `psql -f deploy/logins.sql ADDRESS` with another secret (compose: change it in the file that `deploy/make_env.sh` made, and `docker compose -f deploy/compose.yaml --profile agents up --detach` again; without the profile worker and intake keep the old one), then restart the program with it; connections that it opens in between are refused. To have nothing refused, use a second login: any login with a program's role works for that program. 1. `create role authority_b login password '…' connection limit 96 in role sentinel_authority` (likewise for the other roles, each with its own limit; where a pooler is declared, with the settings under *Behind a pooler* too). 2. Put it into the program's database address and restart. 3. When `pg_stat_activity` shows no connection of the old login, disable it: `alter role sentinel_authority nologin` if it is the program's role itself, which has the grants and must stay, or `drop role authority_a` if it is a login of your own. `deploy/logins.sql` would enable the role's login again: leave its variable unset from then on |
| `SENTINEL_STRIPE_WEBHOOK_SECRETS` (Stripe's events) | yes, newest first | 1. Roll the endpoint's secret at Stripe and keep the old one valid for a day: events are signed with both. 2. Put the new one first and restart the intake. 3. Remove the old one after it has expired at Stripe |
| `WORKER_STRIPE_KEY` | not here; Stripe provides the overlap | 1. Rotate the key at Stripe and keep the old one valid for a while, or create a second key of the same account with the same rights. 2. Set the new one and restart the worker; refunds in progress are found by their metadata, with either key. 3. Revoke the old one |
| Passwords of the embedded database | no | Stop the programs that use it, delete the login's file in `postgres/passwords` of the data folder, and start them again: a new password is made |
| Keys of outside systems: `WORKER_PLATFORM_KEY`, `WORKER_PRICE_DIFFERENCE_KEY`, `WORKER_TICKET_KEY`, `SENTINEL_SHOP_KEY`, `SENTINEL_CRITIC_API_KEY`, `SENTINEL_ORDERS_MODEL_API_KEY`, `WORKER_RECOGNISER_API_KEY`, `SENTINEL_EXPORT_DECISION_LOG_TOKEN`, `SMTP_PASSWORD` | not here; the other system provides the overlap | 1. Have a second key created there. 2. Set it here and restart. 3. Have the first key revoked there. If a system allows only one key, calls between these steps fail as if it were unreachable: they are repeated, and nothing is given up because of them |
| `SENTINEL_EXPORT_SECRETS` (signing secrets of webhooks) | yes, newest first | 1. Put the new one first at the sender and where `sentinel webhooks` is run, which uses its own environment (`admin.env`; in Kubernetes the Secret `sentinel-admin` and a new Pod); restart the sender: messages are signed with both. 2. With that environment give each receiver the secret that `sentinel webhooks secret WEBHOOK_ID` prints. If it prints the secret that the receiver already has, the command still has the old setting. 3. Remove the old one in both places and restart the sender. To replace the secret of a single webhook: `sentinel webhooks rotate WEBHOOK_ID` |
| `SLACK_WEBHOOK_URL`, `SENTINEL_EXPORT_SLACK_WEBHOOK_URL` | no | Create the new address, set it, restart the intake or the sender, and remove the old address. An alert or notice that could not be delivered waits and is sent again |
"""


def render() -> str:
    """The whole document as Markdown."""
    return (
        _HEAD
        + "".join(f"\n## {title}\n\n{_table(kind)}" for title, kind in programs())
        + _SOURCES
        + _senders()
        + _FILES.replace("{secrets}", ", ".join(f"`{name}`" for name in sorted(SECRETS)))
        + _EMBEDDED
        + _COMMANDS
        + _LOGINS % {"spare": SPARE_CONNECTIONS, "opened": WorkerSettings().connections}
        + _ROTATION
    )


def _senders() -> str:
    shipped = yaml.safe_load((policies_dir() / "order_sources.yaml").read_text())["sources"]
    rows = []
    for name, source in shipped.items():
        rows.append((source["secret"], f"Secret of `{name}`: {source['about']}"))
        if old := source.get("old_secret"):
            rows.append((old["env"], f"Secret of `{name}` until {old['until']}"))
        rows += [(one["key"], f"Key for {one['url']}") for one in source.get("lookups", ()) if "key" in one]
    return _COLUMNS + "".join(f"| `{variable}` | – | – | {_sentence(text)} |\n" for variable, text in rows)


def _table(kind: type[Any]) -> str:
    rows = [
        f"| `{field.metadata['env']}` | {_default(field.default)} | {_permitted(field)} | {_sentence(field.metadata['help'])} |\n"
        for field in dataclasses.fields(kind)
    ]
    return _COLUMNS + "".join(rows)


def _default(value: Any) -> str:
    if isinstance(value, Path) and value.is_absolute():
        return "the shipped ones"
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`" if value not in (None, "", ()) else "–"


def _permitted(field: dataclasses.Field[Any]) -> str:
    valid = field.metadata["valid"]
    if isinstance(valid, OneOf):
        return ", ".join(f"`{choice}`" for choice in valid.choices)
    if isinstance(valid, Range):
        if valid.min_inclusive:
            return f"{valid.min:g} to {valid.max:d}"
        return f"more than {valid.min:g}, {'at most' if valid.max_inclusive else 'less than'} {valid.max:d}"
    return "on, off" if field.type == "bool" else "–"


def _sentence(text: str) -> str:
    # A first word that is a value ("debug, info …", "name:action") stays as it is typed.
    first = text.split(" ", 1)[0]
    text = text[0].upper() + text[1:] if first.rstrip(";").isalpha() else text
    return text.rstrip(".").replace("|", "\\|") + "."


if __name__ == "__main__":
    import sys

    sys.stdout.write(render())
