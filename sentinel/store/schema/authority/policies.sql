-- Policies: every text that ever decided, and the texts in force.

-- Every policy text that ever decided, by the digest that a proof pack has as policy_digest. Append-only.
create table sentinel.policies (
  policy_digest  text primary key check (policy_digest ~ '^sha256:[0-9a-f]{64}$'),
  policy_id      text not null,
  policy_version text not null,
  canonical      text not null,                                            -- the compiled policy as canonical JSON
  first_seen_at  timestamptz not null default clock_timestamp()
);
create trigger append_only before update or delete or truncate on sentinel.policies
  for each statement execute function sentinel.refuse_change();

-- The policy text in force, written by the authority after each load. A gate report counts only for exactly this text.
create table sentinel.policies_in_force (
  policy_id     text primary key,
  policy_digest text not null check (policy_digest ~ '^sha256:[0-9a-f]{64}$'),
  since         timestamptz not null default clock_timestamp()
);
