-- Who answers for an agent, by its keys alone.
create index agent_keys_agent on sentinel.agent_keys (tenant_id, agent_id) where agent_id is not null;
