-- Alerts to people, delivered at least once.

-- Alerts, to be sent until a channel accepted them. One per order, kind and occasion: raising one again changes nothing.
create table orders.alerts (
  tenant_id       uuid not null,
  alert_id        uuid not null default gen_random_uuid(),
  kind            text not null check (length(kind) between 1 and 40 and kind !~ '[^a-z_]'),
  source          text not null,
  order_id        text not null,
  occasion        text not null default '' check (length(occasion) <= 100), -- distinguishes alerts of one kind about one order
  summary         text not null check (length(summary) between 1 and 500),
  details         jsonb not null default '{}',                             -- a channel may show them with the summary
  attempts        integer not null default 0,
  next_attempt_at timestamptz not null default clock_timestamp(),
  last_error      text check (length(last_error) <= 500),
  delivered_at    timestamptz,
  delivered_by    text,                                                    -- the channel that accepted it
  created_at      timestamptz not null default clock_timestamp(),
  primary key (tenant_id, alert_id),
  constraint alerts_once unique (order_id, source, kind, occasion, tenant_id),
  constraint alerts_delivered_by check ((delivered_at is null) = (delivered_by is null))
) with (fillfactor = 70);
create index alerts_open on orders.alerts (tenant_id, next_attempt_at) where delivered_at is null;
create index alerts_newest on orders.alerts (tenant_id, created_at desc, alert_id);

create or replace function orders.check_alert() returns trigger language plpgsql as $$
begin
  if (new.tenant_id, new.alert_id, new.kind, new.source, new.order_id, new.occasion, new.summary, new.details, new.created_at)
     is distinct from
     (old.tenant_id, old.alert_id, old.kind, old.source, old.order_id, old.occasion, old.summary, old.details, old.created_at) then
    raise exception 'what an alert says cannot change' using errcode = 'check_violation', constraint = 'alerts_fixed';
  end if;
  if old.delivered_at is not null and new.delivered_at is distinct from old.delivered_at then
    raise exception 'an alert is delivered once' using errcode = 'check_violation', constraint = 'alerts_delivered_once';
  end if;
  return new;
end $$;

-- Inserts the alert of each batch row that has one; `kind` null is none. With `each_time` there is a new alert after each retry that a
-- person requested.
create or replace function orders.raise_alerts(batch jsonb) returns void language sql as $$
  insert into orders.alerts (tenant_id, kind, source, order_id, occasion, summary, details)
  select i.tenant_id, i.alert ->> 'kind', i.source, i.order_id,
    coalesce(i.alert ->> 'occasion', '') || case when (i.alert ->> 'each_time')::boolean then (
      select coalesce(' ' || (1 + nullif(count(*), 0)), '') from orders.analyst_decisions w join orders.reviews r using (review_id, tenant_id)
      where r.order_id = i.order_id and r.source = i.source and r.tenant_id = i.tenant_id and w.decision = 'retry') else '' end,
    i.alert ->> 'summary', coalesce(i.alert -> 'details', '{}')
  from jsonb_to_recordset(batch) i(tenant_id uuid, source text, order_id text, alert jsonb)
  where i.alert ->> 'kind' is not null
  on conflict on constraint alerts_once do nothing
$$;

create trigger check_alert before update on orders.alerts for each row execute function orders.check_alert();
create trigger never_forgotten before delete or truncate on orders.alerts
  for each statement execute function refunds.refuse_change();
