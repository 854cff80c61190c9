-- A refund that its settlement system refuses for good ends at once, for a person: see worker/states.py.
insert into refunds.transitions (from_status, event, to_status) values ('ALLOWED', 'settlement_refused', 'ERROR');
