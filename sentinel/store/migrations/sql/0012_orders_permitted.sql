-- What is started or fulfilled was permitted, and the low lane is the authority's ALLOW: whatever a program writes.
alter table orders.reviews
  add constraint reviews_low_is_allowed check (lane <> 'low' or decision = 'ALLOW'),
  add constraint reviews_started_is_permitted check (status not in ('STARTED', 'FULFILLED') or decision in ('ALLOW', 'APPROVAL_REQUIRED'));
