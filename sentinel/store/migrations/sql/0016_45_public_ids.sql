-- Identifiers of the public: minted with a secret, and kept by what they stand for, so that operators can look one up.

-- What public ids are minted with where no setting says it. Beside the values that they stand for, it tells nobody anything new.
create table sentinel.public_id_secret (
  only_row boolean primary key default true check (only_row),
  secret   text not null check (length(secret) >= 64)
);
insert into sentinel.public_id_secret (secret)
values (encode(sha256(convert_to(gen_random_uuid()::text || gen_random_uuid()::text || gen_random_uuid()::text, 'UTF8')), 'hex'));

create table sentinel.public_ids (
  tenant_id uuid not null,
  public_id text not null,
  kind      text not null check (kind in ('agent', 'action', 'ledger_entry', 'refund')),
  value     text not null,
  event_id  uuid not null,                                                 -- the first decision that it stands in
  primary key (tenant_id, public_id)
);

-- How far the decisions are in the table above, by the secret that minted.
create table sentinel.public_id_marks (
  tenant_id uuid not null,
  key_id    text not null,
  position  bigint not null check (position >= 0),
  primary key (tenant_id, key_id)
);

-- An agent's name is public only where a key that is bound to it asked. A key's place after a rotation is the same principal.
create index agent_keys_principal on sentinel.agent_keys (tenant_id, principal_id);
create or replace view sentinel.public_proofs as
  select tenant_id, event_id, agent_id, body, hash, occurred_at,
    exists (select from sentinel.operations o join sentinel.agent_keys k using (tenant_id, principal_id)
            where o.tenant_id = e.tenant_id and o.operation_id = e.operation_id and k.agent_id = e.agent_id) as is_bound
  from sentinel.events e where kind = 'decision';

create or replace view sentinel.public_feed as
  select f.tenant_id, f.position, e.event_id, e.agent_id, e.body, e.hash, e.occurred_at, e.is_bound
  from sentinel.feed f join sentinel.public_proofs e using (tenant_id, event_id);
