-- Confirm cards: what a customer was asked, and their one answer.
-- A card belongs to one ledger row and one digest of what it shows. The worker opens cards and sends links; only
-- `answer_confirmation` records an answer, and only the console and the public's listener may call it.

-- One card. Contact and language are the customer's.
create table refunds.confirmations (
  tenant_id           uuid not null default refunds.default_tenant(),
  confirmation_id     uuid not null default gen_random_uuid(),
  ledger_entry_id     text not null,
  refund_id           text not null,
  digest              text not null check (length(digest) = 71 and digest ~ '^sha256:[0-9a-f]+$'), -- of everything shown to the customer
  order_ref           text,
  channel             text not null,
  scenario            text not null,
  amount_minor        bigint not null check (amount_minor between 1 and 1000000000000),
  currency            text not null check (currency ~ '^[A-Z]{3}$'),
  language            text check (language ~ '^[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8})*$'),
  contact             text check (length(contact) between 1 and 320),      -- where the link is sent; never shown, never logged
  status              text not null default 'pending' check (status in
                        ('pending', 'confirmed', 'declined', 'expired', 'superseded')),
  created_at          timestamptz not null default clock_timestamp(),
  expires_at          timestamptz not null,                                -- an answer counts only before this moment
  answered_at         timestamptz,
  delivered_at        timestamptz,                                         -- when the link was sent
  delivery_attempts   integer not null default 0,                          -- attempts to send it
  next_delivery_at    timestamptz not null default clock_timestamp(),
  last_delivery_error text,
  primary key (tenant_id, confirmation_id),
  foreign key (tenant_id, ledger_entry_id) references refunds.ledger_entries,
  constraint confirmation_has_time check (expires_at > created_at),
  constraint confirmation_answer_has_moment check ((status in ('confirmed', 'declined')) = (answered_at is not null)),
  constraint confirmation_answered_in_time check (answered_at < expires_at)
) with (fillfactor = 80);

-- One pending card per row, and one answer per digest for ever: an expired or declined question is not asked again.
create unique index confirmations_pending_once on refunds.confirmations (tenant_id, ledger_entry_id) where status = 'pending';
create unique index confirmations_digest_once on refunds.confirmations (tenant_id, ledger_entry_id, digest)
  where status <> 'superseded';
create index confirmations_entry on refunds.confirmations (tenant_id, ledger_entry_id, created_at);
create index confirmations_undelivered on refunds.confirmations (tenant_id, next_delivery_at)
  where status = 'pending' and delivered_at is null;
create index confirmations_answered on refunds.confirmations (tenant_id, answered_at) where answered_at is not null;

create or replace function refunds.check_confirmation() returns trigger language plpgsql as $$
begin
  if tg_op = 'INSERT' then
    if new.status <> 'pending' then
      raise exception 'a confirmation begins as pending, not %', new.status
        using errcode = 'check_violation', constraint = 'confirmation_begins_pending';
    end if;
    return new;
  end if;
  if (new.tenant_id, new.confirmation_id, new.ledger_entry_id, new.refund_id, new.digest, new.order_ref, new.channel, new.scenario,
      new.amount_minor, new.currency, new.language, new.contact, new.created_at, new.expires_at)
     is distinct from
     (old.tenant_id, old.confirmation_id, old.ledger_entry_id, old.refund_id, old.digest, old.order_ref, old.channel, old.scenario,
      old.amount_minor, old.currency, old.language, old.contact, old.created_at, old.expires_at) then
    raise exception 'what a confirmation asks cannot change' using errcode = 'check_violation', constraint = 'confirmation_terms_fixed';
  end if;
  if old.status <> 'pending' and (new.status, new.answered_at) is distinct from (old.status, old.answered_at) then
    raise exception 'this confirmation is over: %', old.status using errcode = 'check_violation', constraint = 'confirmation_answer_fixed';
  end if;
  if old.status = 'pending' and new.status = 'expired' and old.expires_at > clock_timestamp() then
    raise exception 'this confirmation has time left' using errcode = 'check_violation', constraint = 'confirmation_expires_late';
  end if;
  return new;
end $$;

create or replace function refunds.refuse_confirmation_removal() returns trigger language plpgsql as $$
begin
  raise exception '% on refunds.confirmations is refused', tg_op using errcode = 'insufficient_privilege';
end $$;

-- Whether a row can still be paid; a card of a row that cannot is void.
create or replace function refunds.entry_is_open(tenant uuid, entry text) returns boolean language sql stable security definer
  set search_path = pg_catalog, pg_temp as $$
  select exists (select from refunds.ledger_entries e
                 where e.tenant_id = tenant and e.ledger_entry_id = entry and e.status not in ('DENIED', 'EXECUTED', 'ERROR'))
$$;

-- Opens a card for each of these rows and digests unless it ever had one; a pending card of another digest is superseded.
-- The card's content is read from the row itself, so that no caller can ask for another amount than would be paid.
-- asks: [{ledger_entry_id, digest, language, contact}]
create or replace function refunds.open_confirmations(tenant uuid, asks jsonb, expires_seconds double precision) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  moment timestamptz := clock_timestamp();
begin
  perform c.confirmation_id from refunds.confirmations c
  join jsonb_to_recordset(asks) as a (ledger_entry_id text) using (ledger_entry_id)
  where c.tenant_id = tenant and c.status = 'pending' order by c.ledger_entry_id for update of c;
  update refunds.confirmations c set status = 'superseded'
  from jsonb_to_recordset(asks) as a (ledger_entry_id text, digest text)
  where c.tenant_id = tenant and c.ledger_entry_id = a.ledger_entry_id and c.status = 'pending' and c.digest <> a.digest;
  insert into refunds.confirmations (tenant_id, ledger_entry_id, refund_id, digest, order_ref, channel, scenario, amount_minor,
                                     currency, language, contact, created_at, expires_at)
  select tenant, e.ledger_entry_id, e.refund_id, a.digest, e.order_ref, e.channel, e.scenario, e.amount_minor, e.currency,
         a.language, a.contact, moment, moment + make_interval(secs => expires_seconds)
  from jsonb_to_recordset(asks) as a (ledger_entry_id text, digest text, language text, contact text)
  join refunds.ledger_entries e on e.tenant_id = tenant and e.ledger_entry_id = a.ledger_entry_id
  where e.status not in ('DENIED', 'EXECUTED', 'ERROR')
  order by e.ledger_entry_id
  on conflict do nothing;
end $$;

-- The newest card of each row. A pending card whose time is over is set to expired first, so that the worker reads a final status.
create or replace function refunds.latest_confirmations(tenant uuid, entries text[])
returns table (ledger_entry_id text, confirmation_id uuid, digest text, status text, expires_at timestamptz,
               answered_at timestamptz, delivered_at timestamptz, delivery_attempts integer, last_delivery_error text)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
  update refunds.confirmations c set status = 'expired'
  where c.tenant_id = tenant and c.ledger_entry_id = any (entries) and c.status = 'pending' and c.expires_at <= clock_timestamp();
  return query
    select distinct on (c.ledger_entry_id) c.ledger_entry_id, c.confirmation_id, c.digest, c.status, c.expires_at, c.answered_at,
      c.delivered_at, c.delivery_attempts, c.last_delivery_error
    from refunds.confirmations c where c.tenant_id = tenant and c.ledger_entry_id = any (entries)
    order by c.ledger_entry_id, c.created_at desc, (c.status = 'superseded'), c.confirmation_id;
end $$;

-- Records a customer's answer, 'confirm' or 'decline', to exactly the card that was shown. One conditional UPDATE decides; of many
-- concurrent answers one wins. Returns confirmed, declined, already_confirmed, already_declined, expired, superseded, unknown
-- or changed (the card's content is not that of the submitted form).
create or replace function refunds.answer_confirmation(tenant uuid, confirmation uuid, shown_digest text, answer text) returns text
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  moment timestamptz := clock_timestamp();
  given  text := case answer when 'confirm' then 'confirmed' when 'decline' then 'declined' end;
  card   refunds.confirmations;
begin
  if given is null then
    raise exception 'an answer is confirm or decline' using errcode = 'invalid_parameter_value';
  end if;
  update refunds.confirmations c set status = given, answered_at = moment
  where c.tenant_id = tenant and c.confirmation_id = confirmation and c.digest = shown_digest and c.status = 'pending'
    and c.expires_at > moment and refunds.entry_is_open(c.tenant_id, c.ledger_entry_id)
  returning * into card;
  if found then
    update refunds.ledger_entries e set next_attempt_at = clock_timestamp()
    where e.tenant_id = tenant and e.ledger_entry_id = card.ledger_entry_id and e.status = 'APPROVAL_REQUIRED'
      and e.waiting_for = 'customer';
    return given;
  end if;
  select c.* into card from refunds.confirmations c where c.tenant_id = tenant and c.confirmation_id = confirmation;
  return case
    when not found then 'unknown'
    when card.digest is distinct from shown_digest then 'changed'
    when card.status in ('confirmed', 'declined') then 'already_' || card.status
    when card.status <> 'pending' then card.status
    when card.expires_at <= moment then 'expired'
    else 'superseded'
  end;
end $$;

create trigger check_confirmation before insert or update on refunds.confirmations
  for each row execute function refunds.check_confirmation();
create trigger stays before delete or truncate on refunds.confirmations
  for each statement execute function refunds.refuse_confirmation_removal();
