-- Who starts or reports: the key's principal, and the agent it is bound to.
alter type sentinel.guard_input add attribute bound_agent text;
alter type sentinel.start_input add attribute principal_id uuid, add attribute bound_agent text;
alter type sentinel.report_input add attribute principal_id uuid, add attribute bound_agent text;
