-- Policies: every text that ever decided, and which decides now.

-- Every policy text that ever decided, by digest: what a proof pack's policy_digest means. Append-only.
create table sentinel.policies (
  policy_digest  text primary key check (policy_digest ~ '^sha256:[0-9a-f]{64}$'),
  policy_id      text not null,
  policy_version text not null,
  canonical      text not null,                                            -- the compiled policy as canonical JSON
  first_seen_at  timestamptz not null default clock_timestamp()
);
create trigger append_only before update or delete or truncate on sentinel.policies
  for each statement execute function sentinel.refuse_change();

-- Which policy text decides now, as the authority says after each load. A gate report must be about exactly this one.
create table sentinel.policies_in_force (
  policy_id     text primary key,
  policy_digest text not null check (policy_digest ~ '^sha256:[0-9a-f]{64}$'),
  since         timestamptz not null default clock_timestamp()
);
