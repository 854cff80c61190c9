-- Operators' sessions in a browser or by API, and their tokens for scripts.

-- A signed-in browser or program.
create table sentinel.operator_sessions (
  tenant_id     uuid not null,
  session_hash  bytea not null,                                            -- SHA-256 of the cookie's value
  operator_id   uuid not null,
  csrf_token    text not null,                                             -- what a form must send back
  created_at    timestamptz not null default clock_timestamp(),
  last_seen_at  timestamptz not null default clock_timestamp(),
  expires_at    timestamptz not null,                                      -- absolute end
  revoked_at    timestamptz,                                               -- set when it was ended before expires_at
  session_id    uuid not null default gen_random_uuid(),                   -- its id in lists; not a secret
  kind          text not null default 'api' check (kind in ('api', 'page')),
  stepped_up_at timestamptz,                                               -- when the person last authenticated again
  address       text not null default '',
  user_agent    text not null default '',
  said          jsonb,                                                     -- a message that the next page shows once
  primary key (tenant_id, session_hash),
  foreign key (tenant_id, operator_id) references sentinel.operators
);
create index operator_sessions_by_hash on sentinel.operator_sessions (session_hash);
create index operator_sessions_of on sentinel.operator_sessions (operator_id) where revoked_at is null;

-- A token for a script, as its hash.
create table sentinel.operator_tokens (
  tenant_id   uuid not null,
  token_id    uuid not null,
  token_hash  bytea not null,                                              -- SHA-256 of the token
  operator_id uuid not null,
  label       text not null default '',                                    -- what it is for
  created_at  timestamptz not null default clock_timestamp(),
  expires_at  timestamptz,
  revoked_at  timestamptz,
  primary key (tenant_id, token_id),
  foreign key (tenant_id, operator_id) references sentinel.operators
);
create index operator_tokens_by_hash on sentinel.operator_tokens (token_hash);
