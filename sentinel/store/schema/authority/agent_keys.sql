-- The keys of agents, and who answers for each.

-- A key lets an agent ask. It is kept as a hash; who answers for it never approves for it.
create table sentinel.agent_keys (
  tenant_id         uuid not null references sentinel.tenants,
  key_id            uuid not null,
  principal_id      uuid not null,                                         -- who it is, the same over rotations
  key_hash          bytea not null,                                        -- SHA-256; the key itself has 178 random bits
  hint              text not null,                                         -- its first characters, to recognise it
  label             text not null default '',
  agent_id          text,                                                  -- bound to this agent, or null for any
  scopes            text[] not null,                                       -- what it is allowed (authority/keys.py): guard, check, report, …
  owner_operator_id uuid,                                                  -- who answers for it: never approves for it
  created_at        timestamptz not null default clock_timestamp(),
  expires_at        timestamptz,
  revoked_at        timestamptz,
  last_used_at      timestamptz,                                           -- to the minute; written beside the decisions, never with one
  maker_ids         uuid[] not null default '{}',                          -- operators who made or rotated it: they ask with it
  primary key (tenant_id, key_id),
  constraint agent_keys_hash_once unique (tenant_id, key_hash)
);
create index agent_keys_by_hash on sentinel.agent_keys (key_hash);

-- A key's place after a rotation is the same principal.
create index agent_keys_principal on sentinel.agent_keys (tenant_id, principal_id);
