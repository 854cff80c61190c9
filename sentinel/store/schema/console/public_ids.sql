-- Public ids: generated with a secret, and stored with the value that each stands for, so that operators can look one up.

-- The secret for public ids if no setting has one. In a database that has the values themselves, it reveals nothing more.
create table sentinel.public_id_secret (
  only_row boolean primary key default true check (only_row),
  secret   text not null check (length(secret) >= 64)
);
insert into sentinel.public_id_secret (secret)
values (encode(sha256(convert_to(gen_random_uuid()::text || gen_random_uuid()::text || gen_random_uuid()::text, 'UTF8')), 'hex'));

-- The value that each public id stands for.
create table sentinel.public_ids (
  tenant_id uuid not null,
  public_id text not null,
  kind      text not null check (kind in ('agent', 'action', 'ledger_entry', 'refund')),
  value     text not null,                                                 -- as the agent sent it
  event_id  uuid not null,                                                 -- the first decision that contains it
  primary key (tenant_id, public_id)
);

-- The feed position up to which decisions are in the table above, by the id of the secret that generated the public ids.
create table sentinel.public_id_marks (
  tenant_id uuid not null,
  key_id    text not null,
  position  bigint not null check (position >= 0),                         -- of the feed
  primary key (tenant_id, key_id)
);
