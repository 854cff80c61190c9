-- Four eyes are two people: who made or rotated a key asks with it, and an account that another person has just changed
-- decides nothing that was asked before.
alter table sentinel.agent_keys add column maker_ids uuid[] not null default '{}';
alter table sentinel.operators add column changed_by_another_at timestamptz;
update sentinel.operators set changed_by_another_at = created_at;
alter table sentinel.operators alter column changed_by_another_at set not null,
  alter column changed_by_another_at set default clock_timestamp();

-- A password that somebody else set works once, and only to set one's own.
alter table sentinel.operators
  add column password_one_time boolean not null default false,
  add column password_used_at timestamptz,                                 -- when a one-time password was used
  add constraint operators_only_one_time_used check (password_one_time or password_used_at is null);
drop function if exists sentinel.add_operator(uuid, uuid, text, text, text, text, uuid);
