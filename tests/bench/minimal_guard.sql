-- The smallest durable guard that PostgreSQL can be asked for, in a schema of its own: one decision row of about 1 kB, one
-- idempotency row, one usage row under its cap, in one function call. It is what the database alone could do, and it is kept
-- small on purpose: no halts, no approvals, no evidence that could be proved, no rules.

drop schema if exists bench_minimal cascade;
create schema bench_minimal;

create table bench_minimal.decisions (
  decision_id bigint generated always as identity (cache 100) primary key,
  tenant_id integer not null,
  decided_at timestamptz not null default clock_timestamp(),
  verdict text not null,
  body text not null
);
create table bench_minimal.idempotency (
  tenant_id integer,
  idempotency_key text,
  decision_id bigint not null,
  primary key (tenant_id, idempotency_key)
);
create table bench_minimal.usage (
  tenant_id integer,
  account text,
  day date,
  used_minor bigint not null,
  primary key (tenant_id, account, day)
) with (fillfactor = 60);

create function bench_minimal.guard(p_key text, p_account text, p_minor bigint, p_cap bigint, p_body text) returns text
language plpgsql as $$
declare
  made bigint := nextval('bench_minimal.decisions_decision_id_seq');
  said text;
begin
  insert into bench_minimal.idempotency values (1, p_key, made) on conflict do nothing;
  if not found then
    return (select d.verdict from bench_minimal.idempotency i join bench_minimal.decisions d using (decision_id)
            where i.tenant_id = 1 and i.idempotency_key = p_key);
  end if;
  insert into bench_minimal.usage as u values (1, p_account, current_date, p_minor)
  on conflict (tenant_id, account, day) do update set used_minor = u.used_minor + excluded.used_minor
  where u.used_minor + excluded.used_minor <= p_cap;
  said := case when found then 'ALLOW' else 'APPROVAL_REQUIRED' end;
  insert into bench_minimal.decisions (decision_id, tenant_id, verdict, body) overriding system value values (made, 1, said, p_body);
  return said;
end $$;
