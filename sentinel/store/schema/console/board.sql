-- What the public board may read: decisions only, as proof packs, their order, and which halts are in force.

-- A pack's proof_id is "pf_" and its event's id in hex: 74 random bits, so that only someone who was given one has it.
-- is_bound: an agent's name is public only if a key bound to it asked.
create view sentinel.public_proofs as
  select tenant_id, event_id, agent_id, body, hash, occurred_at,
    exists (select from sentinel.operations o join sentinel.agent_keys k using (tenant_id, principal_id)
            where o.tenant_id = e.tenant_id and o.operation_id = e.operation_id and k.agent_id = e.agent_id) as is_bound
  from sentinel.events e where kind = 'decision';

create view sentinel.public_feed as
  select f.tenant_id, f.position, e.event_id, e.agent_id, e.body, e.hash, e.occurred_at, e.is_bound
  from sentinel.feed f join sentinel.public_proofs e using (tenant_id, event_id);

create view sentinel.public_tenants as select tenant_id, label from sentinel.tenants;

-- The halts in force and what they cover, without their reasons and who set them.
create view sentinel.public_halts as select tenant_id, scope, target from sentinel.halts where lifted_at is null;
