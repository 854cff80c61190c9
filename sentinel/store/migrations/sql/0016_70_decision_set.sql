-- What rows of a batch share is sent once, and named by its place.
drop function if exists sentinel.plan_together, sentinel.planned_states, sentinel.write_together, sentinel.with_totals, sentinel.locks_of_asks,
  sentinel.peek_decision;
alter type sentinel.guard_input drop attribute planned, drop attribute totals, add attribute shared integer;
drop type sentinel.planned_total;
