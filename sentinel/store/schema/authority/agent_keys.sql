-- The keys of agents, and the operator who answers for each.

-- A key lets an agent ask the authority. It is stored as a hash; the operator who answers for it may not approve what it asks.
create table sentinel.agent_keys (
  tenant_id         uuid not null references sentinel.tenants,
  key_id            uuid not null,
  principal_id      uuid not null,                                         -- identity of the key, the same after rotations
  key_hash          bytea not null,                                        -- SHA-256; the key itself has 178 random bits
  hint              text not null,                                         -- its first characters, to recognise it
  label             text not null default '',
  agent_id          text,                                                  -- the agent it is bound to; null: any agent
  scopes            text[] not null,                                       -- what it may do (authority/keys.py): guard, check, report, …
  owner_operator_id uuid,                                                  -- answers for it, and may not approve what it asks
  created_at        timestamptz not null default clock_timestamp(),
  expires_at        timestamptz,
  revoked_at        timestamptz,
  last_used_at      timestamptz,                                           -- to the minute; never written in a decision's transaction
  maker_ids         uuid[] not null default '{}',                          -- operators who made or rotated it: count as requesters
  primary key (tenant_id, key_id),
  constraint agent_keys_hash_once unique (tenant_id, key_hash)
);
create index agent_keys_by_hash on sentinel.agent_keys (key_hash);

-- A key and its successors after rotations have the same principal.
create index agent_keys_principal on sentinel.agent_keys (tenant_id, principal_id);

-- Who answers for an agent, by its keys; keys are never deleted.
create index agent_keys_agent on sentinel.agent_keys (tenant_id, agent_id) where agent_id is not null;
