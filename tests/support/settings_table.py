"""The documented table of settings, made from the fields themselves: `python -m tests.support.settings_table`.

Each program's settings are a dataclass whose fields carry the variable's name and meaning, so that the table cannot say
anything else than the program does.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import yaml

from ops_console.settings import ConsoleSettings
from sentinel.authority.settings import Settings
from sentinel.export.settings import ExportSettings
from sentinel.platform.resources import policies_dir
from sentinel.platform.secret_files import SECRETS
from worker.orders.settings import OrderReviewSettings
from worker.refunds.settings import SPARE_CONNECTIONS, WorkerSettings

_HEAD = """# Settings

Environment variables, all optional unless the text says otherwise. Made from the code by `make docs`; edit the fields'
texts there. An empty variable is one that is not set, unless its text says otherwise. Whatever is missing, malformed or unsafe is named at start, all of it at once, and nothing runs.
"""


def programs() -> list[tuple[str, type[Any]]]:
    """(title, settings class) of every program, in the order in which one meets them."""
    return [
        ("Authority", Settings), ("Refund worker", WorkerSettings), ("Order intake", OrderReviewSettings),
        ("Console and public board", ConsoleSettings),
        ("Sender of events", ExportSettings),
    ]  # fmt: skip


_COLUMNS = "| Variable | Default | Meaning |\n|---|---|---|\n"

_SOURCES = """
## Senders of orders

Where a sender's secret and a lookup's key come from is said in `order_sources.yaml` (`secret`, `old_secret`, `key`);
these are the ones of the shipped file. A sender whose secret is not set is closed: nothing is genuine there. A secret has
at least 16 bytes, one for Standard Webhooks 24. `sentinel demo` makes the one of `demo` and keeps it in its data folder,
if none is given.

"""

_FILES = """
## Secrets in files

Docker and Kubernetes hand secrets over as files. Where a variable holds a secret, the same name with `_FILE` names a file that
holds it: `SENTINEL_DATABASE_URL_FILE=/run/secrets/database_url`. The file is one line of text, read once as the program starts; a
file that cannot be read, an empty one, and both variables at once are refused. So it is for {secrets}, and for the variables that
`order_sources.yaml` names.
"""

_EMBEDDED = f"""
## Embedded PostgreSQL

{_COLUMNS}| `SENTINEL_EMBEDDED_DATABASE` | `on` | `off` with a database of your own: a program or command whose address is missing then does not start one here, and says which variable it misses. |
| `SENTINEL_PG_BIN` | – | Folder with `postgres` and `initdb` to use instead of the ones found. |
| `TMPDIR` | `/tmp` | Where the folder of the server's socket is made; a path too long for a socket is passed over for `/tmp`. |

Each program logs in as its own role with a secret of its own, kept with mode 0600 in `postgres/passwords` of the data
folder; nobody enters without one, whatever account he has. A program that is started by hand on the folder reads its own.
"""

_COMMANDS = f"""
## Commands

{_COLUMNS}| `SENTINEL_SCRATCH_DATABASE_URL` | – | Server on which `sentinel gates run` makes its scratch database, with a login that may make databases and roles; without it that of `SENTINEL_DATABASE_URL` where its login may, else an embedded one. |
"""

_LOGINS = """
## Logins of the database

Each program acts as one role, and its login may become no other: `sentinel_authority`, `sentinel_worker`, `sentinel_orders`,
`sentinel_console`, `sentinel_exporter`, `sentinel_public`, `board_reader`. Either let the role itself log in (`alter role sentinel_worker login password '…'`), or make a
login of yours and grant it that role alone. At its start and in `/readyz` a program asks its own connection who it is, what
it may become and how long it waits, and refuses another one by name: a superuser's, one that makes roles, a member of
`sentinel_owner`. `sentinel migrate` alone connects as an administrator.

A role opens no more connections than its program needs. `sentinel migrate` sets these once, and leaves what you set:

| Role | Connections | For |
|---|---|---|
| `sentinel_authority` | 96 | `SENTINEL_PROCESSES` × `SENTINEL_POOL_SIZE`, 12 as shipped, for each authority |
| `sentinel_worker` | 24 | `WORKER_LANES` + %(spare)d, %(opened)d as shipped, for each worker; commands |
| `sentinel_orders` | 40 | `SENTINEL_ORDERS_PROCESSES` × `SENTINEL_ORDERS_POOL_SIZE`, 16 as shipped |
| `sentinel_console` | 24 | `SENTINEL_CONSOLE_PROCESSES` × `SENTINEL_CONSOLE_POOL_SIZE`, 8 as shipped, the same for a ledger elsewhere; commands |
| `sentinel_public` | 8 | `SENTINEL_BOARD_PROCESSES` × `SENTINEL_BOARD_POOL_SIZE`, 4 as shipped, the same for a ledger elsewhere |
| `sentinel_exporter` | 8 | `SENTINEL_EXPORT_THREADS` + 1, 5 as shipped, for each sender of events; commands |
| `board_reader` | 12 | (`SENTINEL_CONSOLE_PROCESSES` + `SENTINEL_BOARD_PROCESSES`) × `SENTINEL_BOARD_POOL_SIZE`, 8 as shipped |

More: `alter role sentinel_authority connection limit 160`. A limit of -1, as PostgreSQL makes a role, counts as not set, and the
next `sentinel migrate` sets it: for no limit set a large number, such as 100000. A login of yours needs a limit of its own. A program whose pools
are larger than its login's limit does not start.

**Behind a pooler.** pgbouncer and the like in transaction pooling hand one server connection to many clients: what is said at
the start of a connection is lost, and a prepared statement may be another client's. With
`SENTINEL_DATABASE_POOLER=transaction` nothing is prepared and nothing is said at the start; role and limits stand on the login.
On the programs' own roles `sentinel migrate` sets them. A login of yours needs them too:

```sql
alter role mine set role = 'sentinel_authority';
alter role mine set statement_timeout = '5s';
alter role mine set lock_timeout = '2s';
alter role mine set idle_in_transaction_session_timeout = '10s';
alter role mine set default_transaction_isolation = 'read committed';
alter role mine set timezone = 'UTC';
```

A pooler that nobody declared is noticed and refused. `sentinel migrate` goes to PostgreSQL directly.
"""

_ROTATION = """
## Replacing secrets

In this order nothing is refused in between. A program reads its environment once, so "restart" stands for a restart one
process at a time: each drains what it has in hand, and what waits for one that is away loses nothing by it.

| Secret | Two at once? | Steps |
|---|---|---|
| Agent keys: `SENTINEL_REFUND_AGENT_API_KEY`, `SENTINEL_ORDERS_API_KEY`, those of other agents | yes, for the overlap | 1. `sentinel keys rotate KEY_ID --overlap-hours 24` prints the successor, with the same rights. 2. Put it into the program's environment (or key file) and restart. 3. `sentinel keys list`: the old key's last use stays behind. 4. It ends by itself after the overlap; `sentinel keys revoke KEY_ID` ends it at once, within a second. A worker whose key was refused meanwhile has lost no row: they wait |
| A sender's webhook secret (`order_sources.yaml`) | yes, until the moment you name | 1. Move the present value to a second variable and name it as `old_secret: {env: …, until: …}`. 2. Put the new value into the variable of `secret`; restart the intake. Both are genuine now. 3. Change it at the sender. 4. After `until` only the new one is; take `old_secret` out |
| `SENTINEL_SECRET_KEYS` (permits) | yes, comma separated: the first signs, all are believed | 1. Where `CONFIRM_SECRETS` or `SENTINEL_SECOND_FACTOR_SECRETS` is not set, set it to the present value first: both fall back on this one. 2. Append the new secret at the end; restart every authority. 3. Move it to the front; restart again. 4. After the life of a permit (`SENTINEL_PERMIT_SECONDS`), and once no refund is under way with one from before (the page Ledger, status ALLOWED, has none older), drop the old one and restart. A refund that still is ends in doubt (`start_unconfirmed`), for a person |
| `CONFIRM_SECRETS` (customers' links) | yes, the same way | 1. Append the new one at the public board, which has the confirm page, and restart it. 2. Put it first at the worker and restart it. 3. Put it first at the board and restart it. 4. Drop the old one everywhere once the last link signed with it is over (`CONFIRM_EXPIRES_SECONDS`) |
| `SENTINEL_SECOND_FACTOR_SECRETS` | yes, comma separated: the first encrypts, all decrypt | 1. Append the new one at every console and restart each. 2. Put it first at every console and restart each: a second factor is encrypted anew when its person signs in with a code. 3. Drop the old one once everybody has (the page Operators has each one's last sign-in). Whose factor no secret decrypts any more is refused as with a wrong code, and the log says `second_factor_unreadable`: `sentinel operators reset-second-factor EMAIL`, or an administrator on that person's page, lets them set up another |
| `SENTINEL_PUBLIC_ID_SECRETS` | yes, newest first | 1. Put the new one first at the public board, the console and where `sentinel proof compare` and `sentinel public-ids` are run, and restart the programs: refunds, ledger entries and agents have other public ids from then on, also on decisions of before, whose public proofs so have another hash. Operators find the old ids as before; `sentinel proof compare` knows a public proof of before as long as the old secret stands behind the new one. Without the setting the database keeps one, and nothing need be replaced |
| Session cookies | there is none to replace | A cookie is a random word whose hash the database keeps; signing out ends it |
| Database passwords | two logins, each with one | At once: `psql -f deploy/logins.sql ADDRESS` with another secret (compose: change it in the file that `deploy/make_env.sh` made, and `up --detach` again), then restart the program with it; what it opens in between is refused. With nothing refused in between: any login that was granted a program's role is that program. 1. `create role authority_b login password '…' connection limit 96 in role sentinel_authority` (likewise for the other roles, each with its own limit; where a pooler is declared, with the settings under *Behind a pooler* too). 2. Put it into the program's database address and restart. 3. When `pg_stat_activity` shows nobody under the old login, end it: `alter role sentinel_authority nologin` where it is the program's role itself, which has the grants and stays, `drop role authority_a` where it is a login of yours. `deploy/logins.sql` gives a role its login back: leave its variable out from then on |
| `SENTINEL_STRIPE_WEBHOOK_SECRETS` (Stripe's events) | yes, newest first | 1. Roll the endpoint's secret at Stripe and let the old one live on for a day: events are signed by both. 2. Put the new one first and restart the intake. 3. Drop the old one once it ended there |
| `WORKER_STRIPE_KEY` | here no; the overlap is Stripe's | 1. Rotate the key at Stripe and let the old one live on for a while, or make a second one of the same account with the same rights. 2. Put it in and restart the worker; refunds under way are found by what they carry, under either key. 3. End the old one |
| Secrets of the embedded database | no | Stop what runs on it, delete the login's file in `postgres/passwords` of the data folder, start again: a new one is made |
| Keys of outside systems: `WORKER_PLATFORM_KEY`, `WORKER_PRICE_DIFFERENCE_KEY`, `WORKER_TICKET_KEY`, `SENTINEL_SHOP_KEY`, `SENTINEL_CRITIC_API_KEY`, `SENTINEL_ORDERS_MODEL_API_KEY`, `WORKER_RECOGNISER_API_KEY`, `SENTINEL_EXPORT_DECISION_LOG_TOKEN`, `SMTP_PASSWORD` | here no; the overlap is the other system's | 1. Have a second key made there. 2. Put it in here and restart. 3. Have the first one ended there. Where a system allows one key only, calls between the two steps get no answer that counts: they are repeated, nothing is given up for them |
| `SENTINEL_EXPORT_SECRETS` (signing secrets of webhooks) | yes, newest first | 1. Put the new one first at the sender and where `sentinel webhooks` is run, which reckons with its own environment (`admin.env`; in Kubernetes the Secret `sentinel-admin` and a new Pod); restart the sender: messages are signed by both. 2. With that environment give each receiver the secret that `sentinel webhooks secret WEBHOOK_ID` prints. It is another than the receiver has; where it is the same one, the command still has the old setting. 3. Drop the old one in both places and restart the sender. One webhook alone: `sentinel webhooks rotate WEBHOOK_ID` |
| `SLACK_WEBHOOK_URL`, `SENTINEL_EXPORT_SLACK_WEBHOOK_URL` | no | Make the new address, put it in, restart the intake or the sender, remove the old one. An alert or notice that found nobody waits and is sent again |
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
    return _COLUMNS + "".join(f"| `{variable}` | – | {_sentence(text)} |\n" for variable, text in rows)


def _table(kind: type[Any]) -> str:
    rows = [
        f"| `{field.metadata['env']}` | {_default(field.default)} | {_sentence(field.metadata['help'])} |\n"
        for field in dataclasses.fields(kind)
    ]
    return _COLUMNS + "".join(rows)


def _default(value: Any) -> str:
    if isinstance(value, Path) and value.is_absolute():
        return "the shipped ones"
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`" if value not in (None, "", ()) else "–"


def _sentence(text: str) -> str:
    # A first word that is a value ("debug, info …", "name:action") stays as it is typed.
    first = text.split(" ", 1)[0]
    text = text[0].upper() + text[1:] if first.rstrip(";").isalpha() else text
    return text.rstrip(".").replace("|", "\\|") + "."


if __name__ == "__main__":
    import sys

    sys.stdout.write(render())
