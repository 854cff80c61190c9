-- Alerts to people, delivered at least once.

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

-- An alert per batch row that has one; `kind` null is none.
create or replace function orders.raise_alerts(batch jsonb) returns void language sql as $$
  insert into orders.alerts (tenant_id, kind, source, order_id, occasion, summary, details)
  select i.tenant_id, i.alert ->> 'kind', i.source, i.order_id, coalesce(i.alert ->> 'occasion', ''), i.alert ->> 'summary',
    coalesce(i.alert -> 'details', '{}')
  from jsonb_to_recordset(batch) i(tenant_id uuid, source text, order_id text, alert jsonb)
  where i.alert ->> 'kind' is not null
  on conflict on constraint alerts_once do nothing
$$;
