"""What a database is made of, by name, so that two databases can be compared: `differences` names what they do not share."""

from __future__ import annotations

from typing import Any

import psycopg

_OURS = "in ('sentinel', 'refunds', 'orders')"

# Each gives (name, what it is). Grants, owner and comment are part of what a thing is.
_QUERIES = (
    f"""select 'schema ' || nspname, nspowner::regrole || ' ' || coalesce(nspacl::text, '')
    from pg_namespace where nspname {_OURS} or nspname = 'public'""",
    # Tables, views, sequences and row types: kind, owner, storage, grants, comment, definition.
    f"""select case c.relkind when 'r' then 'table ' when 'p' then 'table ' when 'v' then 'view ' when 'S' then 'sequence '
             when 'c' then 'type ' else c.relkind::text || ' ' end || c.oid::regclass,
      concat_ws(' | ', c.relkind, c.relpersistence, c.relowner::regrole, c.reloptions::text, acl.told, c.relrowsecurity,
        c.relreplident, obj_description(c.oid, 'pg_class'), case when c.relkind = 'v' then pg_get_viewdef(c.oid) end)
    from pg_class c
    left join lateral (select string_agg(one::text, ',' order by one::text) as told from unnest(c.relacl) one) acl on true
    where c.relnamespace::regnamespace::text {_OURS} and c.relkind not in ('i', 'I', 't') or c.oid = to_regclass('public.schema_version')""",
    # Columns in their order, with what is added to a row by itself.
    f"""select case c.relkind when 'c' then 'attribute ' else 'column ' end || c.oid::regclass || '.' || a.attname,
      concat_ws(' | ', rank() over (partition by c.oid order by a.attnum), format_type(a.atttypid, a.atttypmod),
        case when a.attnotnull then 'not null' end, a.attidentity, a.attgenerated, pg_get_expr(d.adbin, d.adrelid),
        nullif(a.attcollation, t.typcollation)::regcollation, a.attstorage, a.attcompression, a.attstattarget, acl.told,
        col_description(c.oid, a.attnum))
    from pg_class c join pg_attribute a on a.attrelid = c.oid join pg_type t on t.oid = a.atttypid
    left join pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum
    left join lateral (select string_agg(one::text, ',' order by one::text) as told from unnest(a.attacl) one) acl on true
    where a.attnum > 0 and not a.attisdropped and c.relkind not in ('i', 'I', 't', 'S')
      and (c.relnamespace::regnamespace::text {_OURS} or c.oid = to_regclass('public.schema_version'))""",
    f"""select 'constraint ' || conrelid::regclass || '.' || conname,
      concat_ws(' | ', pg_get_constraintdef(oid), convalidated, obj_description(oid, 'pg_constraint'))
    from pg_constraint where contype <> 'n' and conrelid <> 0 and connamespace::regnamespace::text {_OURS}""",
    f"""select 'index ' || x.indexrelid::regclass, concat_ws(' | ', pg_get_indexdef(x.indexrelid), x.indisvalid, x.indisclustered,
      (select string_agg(a.attname || ' ' || a.attstattarget, ', ' order by a.attnum) from pg_attribute a
       where a.attrelid = x.indexrelid and a.attstattarget >= 0),
      obj_description(x.indexrelid, 'pg_class'))
    from pg_index x join pg_class c on c.oid = x.indrelid where c.relnamespace::regnamespace::text {_OURS}""",
    f"""select 'trigger ' || t.tgrelid::regclass || '.' || t.tgname,
      concat_ws(' | ', pg_get_triggerdef(t.oid), t.tgenabled, obj_description(t.oid, 'pg_trigger'))
    from pg_trigger t join pg_class c on c.oid = t.tgrelid
    where not t.tgisinternal and c.relnamespace::regnamespace::text {_OURS}""",
    f"""select 'function ' || p.oid::regprocedure, concat_ws(' | ', pg_get_functiondef(p.oid), p.proowner::regrole, acl.told,
      obj_description(p.oid, 'pg_proc'))
    from pg_proc p
    left join lateral (select string_agg(one::text, ',' order by one::text) as told from unnest(p.proacl) one) acl on true
    where p.pronamespace::regnamespace::text {_OURS}""",
    f"""select 'type ' || t.oid::regtype, concat_ws(' | ', t.typtype, t.typowner::regrole, t.typacl::text,
      obj_description(t.oid, 'pg_type'))
    from pg_type t where t.typnamespace::regnamespace::text {_OURS} and t.typtype <> 'c' and t.typelem = 0""",
    """select 'default grants ' || defaclrole::regrole || ' ' || defaclnamespace::text || ' ' || defaclobjtype::text, defaclacl::text
    from pg_default_acl""",
)
_TABLES = f"select format('%I.%I', schemaname, tablename) from pg_tables where schemaname {_OURS} order by 1"
_RANDOM = ("sentinel.public_id_secret",)  # a secret of its own in every database


def catalog(connection: psycopg.Connection[Any]) -> dict[str, str]:
    """Everything of ours by its name, with its definition; the rows of a new database among it."""
    found: dict[str, str] = {}
    for query in _QUERIES:
        found |= dict(connection.execute(query.encode()).fetchall())
    for (table,) in connection.execute(_TABLES.encode()).fetchall():
        if table not in _RANDOM:
            rows = connection.execute(f"select to_jsonb(t)::text from {table} t".encode()).fetchall()
            found[f"rows of {table}"] = "\n".join(sorted(row for (row,) in rows))
    return found


def differences(one: dict[str, str], other: dict[str, str]) -> dict[str, tuple[str | None, str | None]]:
    """What is not the same in both, by name; None where it is not there."""
    return {
        name: (one.get(name), other.get(name))
        for name in sorted(one.keys() | other.keys())
        if one.get(name) != other.get(name)
    }
