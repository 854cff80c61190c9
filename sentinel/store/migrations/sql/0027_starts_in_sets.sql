-- An operation and its state, looked up and locked together for a batch of starts or reports.
create type sentinel.locked_operation as (o sentinel.operations, s sentinel.operation_states);
