-- Proof images as submitted, and what a recogniser found in them: recognised once, and the result is kept.
create table refunds.proof_images (
  tenant_id       uuid not null default refunds.default_tenant(),
  ledger_entry_id text not null,
  sha256          text not null check (sha256 ~ '^[0-9a-f]{64}$'),
  media_type      text not null,
  content         bytea not null check (octet_length(content) <= 5242880),
  received_at     timestamptz not null default clock_timestamp(),
  recognised      jsonb,                                                   -- what was found; null: not recognised yet
  recognised_by   text,                                                    -- the recogniser
  primary key (tenant_id, ledger_entry_id, sha256)
);
