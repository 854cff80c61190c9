-- Plain orders are taken with their score, and shipped by the simulated shop, in one statement each for many of them.
create function orders.write_first_events() returns trigger language plpgsql as 'begin return null; end';
create function orders.check_shipped() returns trigger language plpgsql as 'begin return null; end';

drop trigger check_review on orders.reviews;
create trigger check_review before update on orders.reviews
  for each row execute function orders.check_review();
create trigger check_new_review before insert on orders.reviews
  for each row when (new.lane is not null or new.status <> 'RECEIVED' and (new.status, new.last_event) is distinct from ('SCORED', 'scored'))
  execute function orders.check_review();
create trigger write_first_events after insert on orders.reviews referencing new table as made
  for each statement execute function orders.write_first_events();

drop trigger check_effect on orders.effects;
create trigger check_effect before update on orders.effects
  for each row when (new.state <> old.state or (new.tenant_id, new.review_id, new.kind, new.operation_id)
    is distinct from (old.tenant_id, old.review_id, old.kind, old.operation_id)) execute function orders.check_effect();
create trigger check_new_effect before insert on orders.effects
  for each row when (not (new.kind = 'fulfil' and new.state = 'done')) execute function orders.check_effect();
create trigger check_shipped after insert on orders.effects referencing new table as made
  for each statement execute function orders.check_shipped();

drop function orders.ship_reviews(jsonb, jsonb);

-- A trail is read by its review: one index instead of two.
alter table orders.events drop constraint events_pkey, add primary key (review_id, event_id);
drop index orders.events_review;
