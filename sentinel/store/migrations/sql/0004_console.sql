-- The console: sessions that can be listed and stepped up, a second factor, and what a page has still to say.

alter table sentinel.operator_sessions
  add column session_id    uuid not null default gen_random_uuid(),        -- its name in lists; opens nothing
  add column kind          text not null default 'api' check (kind in ('api', 'page')),
  add column stepped_up_at timestamptz,                                    -- when the person last proved who they are
  add column address       text not null default '',
  add column user_agent    text not null default '',
  add column said          jsonb;                                          -- told by the next page, then gone
create index operator_sessions_of on sentinel.operator_sessions (operator_id) where revoked_at is null;
