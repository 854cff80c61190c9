-- What may happen only once belongs to the tenant and the name of the thing, whatever policy asks: "refund|rf_1" where it was
-- "retail-refund|rf_1". Beside the exact key stands its folded form, by which other spellings of it are found.

drop function sentinel.once_taken(uuid, text);                             -- once_held and once_seen stand for it
drop index sentinel.operation_states_once;

-- The thing that an old key is about, by what the policy that made it says of its path: params.refund_id is about a "refund".
-- Where that policy's text is not kept, by the param that holds the value. What neither tells keeps the key it has.
with found as (
  select s.tenant_id, s.operation_id, s.once_live, s.started_at is null as waits, o.created_at,
         substr(s.once_key, strpos(s.once_key, '|') + 1) as value,
         coalesce(
           (select p.canonical::jsonb ->> 'once_per' from sentinel.policies p where p.policy_digest = s.policy_digest),
           (select param.key from jsonb_each_text(o.request::jsonb -> 'params') as param
            where param.value = substr(s.once_key, strpos(s.once_key, '|') + 1)
            order by param.key in ('refund_id', 'order_key', 'order_id') desc, param.key limit 1)) as path
  from sentinel.operation_states s join sentinel.operations o using (tenant_id, operation_id)
  where strpos(s.once_key, '|') > 0
), named as (
  select *, regexp_replace(lower(regexp_replace(path, '^.*\.', '')), '_(id|ref|key)$', '') || '|' || value as once_key
  from found where path is not null
), numbered as (
  -- Two policies may have let the same thing happen: who is furthest holds the name; each further one is marked, so that it
  -- holds a key of its own, and everything that asks from now on sees all of them.
  select tenant_id, operation_id, once_key, case when once_live then
    row_number() over (partition by tenant_id, once_key, once_live order by waits, created_at, operation_id) - 1 else 0 end as others
  from named
)
update sentinel.operation_states s set once_key = n.once_key || repeat('~', n.others::integer)
from numbered n where s.tenant_id = n.tenant_id and s.operation_id = n.operation_id;

-- A permit for what somebody else holds too runs out now: whoever asks for it again is asked about the other.
update sentinel.operation_states set permit_expires_at = least(permit_expires_at, clock_timestamp())
where once_key like '%~' and status in ('allowed', 'approved') and permit_id is not null;

alter table sentinel.operation_states
  add column once_folded text generated always as (rtrim(lower(once_key collate "C"), '._:/@-~')) stored;

-- One index for both: unique by the exact key (the folded one follows from it), found by the folded one.
create unique index operation_states_once on sentinel.operation_states (tenant_id, once_folded, once_key) where once_live;

-- What a decision looked at beside the operation (sentinel/core/proof.py, decision_basis), with the salt that its commitment
-- needs: who erases the row takes both. Null for what was decided before.
alter table sentinel.operations add column basis text;
-- Ids of what tightened a decision in its own transaction: limits that were full, a halt, a once-key. Null: nothing did.
alter table sentinel.operation_states add column tightened text[];
-- facts_commitment: where nothing tightens; else the database makes its own.
alter type sentinel.guard_input add attribute basis text, add attribute facts_commitment text;
