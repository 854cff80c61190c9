-- Identifiers of the public: minted with a secret, and kept by what they stand for, so that operators can look one up.

-- What public ids are minted with where no setting says it. Beside the values that they stand for, it tells nobody anything new.
create table sentinel.public_id_secret (
  only_row boolean primary key default true check (only_row),
  secret   text not null check (length(secret) >= 64)
);
insert into sentinel.public_id_secret (secret)
values (encode(sha256(convert_to(gen_random_uuid()::text || gen_random_uuid()::text || gen_random_uuid()::text, 'UTF8')), 'hex'));

-- What each public identifier stands for.
create table sentinel.public_ids (
  tenant_id uuid not null,
  public_id text not null,
  kind      text not null check (kind in ('agent', 'action', 'ledger_entry', 'refund')),
  value     text not null,                                                 -- what an agent wrote
  event_id  uuid not null,                                                 -- the first decision that it stands in
  primary key (tenant_id, public_id)
);

-- How far the decisions are in the table above, by the secret that minted.
create table sentinel.public_id_marks (
  tenant_id uuid not null,
  key_id    text not null,
  position  bigint not null check (position >= 0),                         -- of the feed
  primary key (tenant_id, key_id)
);
