-- Guessing is counted by account and by network, so that nobody shuts an account out from everywhere.
alter table sentinel.sign_in_attempts
  add column network text not null default '',                             -- the address in IPv4, the first 64 bits in IPv6
  add column with_code boolean not null default false,                     -- a code of a second factor was given
  add column password_right boolean not null default false;                -- refused for its code alone
update sentinel.sign_in_attempts set network = address;

-- Counting goes one after another, held by this row: a role that may not change it cannot hold the door shut.
create table sentinel.sign_in_gate (only_row boolean primary key default true check (only_row));
insert into sentinel.sign_in_gate default values;
