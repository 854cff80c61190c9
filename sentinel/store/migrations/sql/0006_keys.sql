-- Keys: when each was last used. Browsers that are known: until when.

-- To the minute; written beside the decisions, never with one (services/key_uses.py).
alter table sentinel.agent_keys add column last_used_at timestamptz;

-- A browser that came in as somebody has a throttle of its own for a while; after that it is any browser again.
create table sentinel.known_devices (
  device_hash       bytea primary key,                                     -- of the name in the cookie
  account_hash      bytea not null,                                        -- of the address it came in as
  last_signed_in_at timestamptz not null default clock_timestamp()
);
create index known_devices_by_age on sentinel.known_devices (last_signed_in_at);
