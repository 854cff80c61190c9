-- Sign-in: attempts counted against guessing, second factors, known browsers.

-- Recent attempts, for throttling by account and by network, so that nobody can lock an account out from everywhere; the console deletes
-- old ones.
create table sentinel.sign_in_attempts (
  attempt_id     bigint generated always as identity primary key,
  account_hash   bytea not null,                                           -- SHA-256 of the e-mail tried, so that no user list leaks
  address        text not null,                                            -- as the server saw it
  succeeded      boolean not null,
  attempted_at   timestamptz not null default clock_timestamp(),
  device_hash    bytea,                                                    -- a browser that has signed in before; has its own counter
  network        text not null default '',                                 -- the address in IPv4, the first 64 bits in IPv6
  with_code      boolean not null default false,                           -- a second factor's code was given
  password_right boolean not null default false                            -- refused because of its code alone
);
create index sign_in_attempts_recent on sentinel.sign_in_attempts (attempted_at);
-- For the day's attempts of one account, which are counted at each attempt.
create index sign_in_attempts_of_account on sentinel.sign_in_attempts (account_hash, attempted_at);

-- Attempts are counted one after another under the lock of this row: a role that may not update it cannot lock it and block sign-in.
create table sentinel.sign_in_gate (only_row boolean primary key default true check (only_row));
insert into sentinel.sign_in_gate default values;

-- Second factors (TOTP). The secret is encrypted with a key that the database does not have (ops_console/accounts/second_factors.py).
create table sentinel.second_factors (
  tenant_id    uuid not null,
  operator_id  uuid not null,
  secret       text not null,
  last_step    bigint not null default 0,                                  -- time step of the last code used: a code works once
  created_at   timestamptz not null default clock_timestamp(),
  confirmed_at timestamptz,                                                -- null: shown to the person, not required yet
  primary key (tenant_id, operator_id),
  foreign key (tenant_id, operator_id) references sentinel.operators
);

-- A browser that has signed in to an account has a throttle of its own for a while; after that it is unknown again.
create table sentinel.known_devices (
  device_hash       bytea primary key,                                     -- hash of the device name in the cookie
  account_hash      bytea not null,                                        -- hash of the e-mail it signed in with
  last_signed_in_at timestamptz not null default clock_timestamp()
);
create index known_devices_by_age on sentinel.known_devices (last_signed_in_at);
