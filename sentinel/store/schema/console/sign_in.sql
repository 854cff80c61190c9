-- Signing in: what is counted against guessing, the second factor, browsers that are known.

-- Attempts of the last minutes, for throttling by account and by network, so that nobody shuts an account out from
-- everywhere; swept by the console.
create table sentinel.sign_in_attempts (
  attempt_id     bigint generated always as identity primary key,
  account_hash   bytea not null,                                           -- SHA-256 of the e-mail tried: no user list leaks
  address        text not null,                                            -- as the server saw it
  succeeded      boolean not null,
  attempted_at   timestamptz not null default clock_timestamp(),
  device_hash    bytea,                                                    -- a browser that came in before; its own counter
  network        text not null default '',                                 -- the address in IPv4, the first 64 bits in IPv6
  with_code      boolean not null default false,                           -- a code of a second factor was given
  password_right boolean not null default false                            -- refused for its code alone
);
create index sign_in_attempts_recent on sentinel.sign_in_attempts (attempted_at);
-- The day's attempts of one account, which each attempt counts.
create index sign_in_attempts_of_account on sentinel.sign_in_attempts (account_hash, attempted_at);

-- Counting goes one after another, held by this row: a role that may not change it cannot hold the door shut.
create table sentinel.sign_in_gate (only_row boolean primary key default true check (only_row));
insert into sentinel.sign_in_gate default values;

-- Second factors (TOTP). The secret is encrypted with a key that the database does not have (ops_console/accounts/second_factors.py).
create table sentinel.second_factors (
  tenant_id    uuid not null,
  operator_id  uuid not null,
  secret       text not null,
  last_step    bigint not null default 0,                                  -- of the code used last: each opens once
  created_at   timestamptz not null default clock_timestamp(),
  confirmed_at timestamptz,                                                -- null: shown, and not asked for yet
  primary key (tenant_id, operator_id),
  foreign key (tenant_id, operator_id) references sentinel.operators
);

-- A browser that came in as somebody has a throttle of its own for a while; after that it is any browser again.
create table sentinel.known_devices (
  device_hash       bytea primary key,                                     -- of the name in the cookie
  account_hash      bytea not null,                                        -- of the address it came in as
  last_signed_in_at timestamptz not null default clock_timestamp()
);
create index known_devices_by_age on sentinel.known_devices (last_signed_in_at);
