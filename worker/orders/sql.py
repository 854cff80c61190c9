"""The SQL of order review. The steps themselves are functions of the schema (`schema/orders/`)."""

# %b: the batch travels as binary jsonb; the answer comes back the same way.
TAKE_DELIVERIES = """
select seq, outcome, response_status, response_body, is_final, velocity_24h, amount_24h, (work).*
from orders.take_deliveries(%b)
"""
SCORE_REVIEWS = "select orders.score_reviews(%b)"
DECIDE_REVIEWS = "select orders.decide_reviews(%b)"
REFUSE_STARTS = "select orders.refuse_starts(%b)"
PUT_OFF_REVIEWS = "select orders.put_off_reviews(%b)"
SETTLE_FULFILMENTS = "select orders.settle_fulfilments(%b)"
SHIP_SCORED = "select orders.ship_scored(%b)"
LOOK_AT_DELIVERIES = "select * from orders.delivery_states(%b)"
TAKE_SCORED = "select * from orders.take_scored(%b)"
SETTLE_HOLDS = "select orders.settle_holds(%b)"
RECORD_DELIVERIES = "select orders.record_deliveries(%b)"
RAISE_ALERTS = "select orders.raise_alerts(%b)"

CLAIM_REVIEWS = "select * from orders.claim_reviews(%(tenant_id)s, %(limit)s, %(token)s, %(lease_seconds)s)"
CLAIM_HOLDS = "select tries, seconds_ago, (work).* from orders.claim_holds(%(tenant_id)s, %(limit)s, %(lease_seconds)s)"
# What is not finished is due at some time, and is found by that; the rest of the table is not looked at.
# One look behind the cursor: an approval decided while the last page was read is not missed.
APPROVALS_WANTED_SINCE = """
select coalesce((select c.since - interval '2 seconds' from orders.approval_cursors c where c.tenant_id = %(tenant_id)s),
                min(r.received_at) - interval '1 minute')
from orders.reviews r where r.tenant_id = %(tenant_id)s and r.status = 'QUEUED' and r.next_attempt_at < 'infinity'
having count(*) > 0
"""
FOLLOW_REFUNDS = "select orders.track_filed_refunds(%(tenant_id)s, %(limit)s, %(events)s::uuid[])"
WAKE_REVIEWS = "select orders.make_reviews_due(%(tenant_id)s, %(approval_ids)s::uuid[])"
MOVE_CURSOR = """
insert into orders.approval_cursors (tenant_id, since) values (%(tenant_id)s, %(since)s)
on conflict (tenant_id) do update set since = greatest(orders.approval_cursors.since, excluded.since)
"""
FORGET_DELIVERIES = """
delete from orders.deliveries d using (
  select tenant_id, source, order_id from orders.deliveries
  where expires_at < statement_timestamp() and tenant_id = %(tenant_id)s limit 5000) old
where d.tenant_id = old.tenant_id and d.source = old.source and d.order_id = old.order_id
"""
FIGURES = """
select
  (select count(*) from orders.reviews where tenant_id = %(tenant_id)s and status = 'QUEUED'
    and next_attempt_at < 'infinity') as queued,
  (select coalesce(extract(epoch from clock_timestamp() - min(decided_at)), 0)::float8 from orders.reviews
    where tenant_id = %(tenant_id)s and status = 'QUEUED' and next_attempt_at < 'infinity') as oldest_queued_seconds,
  (select count(*) from orders.reviews where tenant_id = %(tenant_id)s
    and status in ('RECEIVED', 'SCORED', 'DECIDED', 'STARTED') and next_attempt_at < 'infinity') as under_way,
  (select count(*) from orders.effects where tenant_id = %(tenant_id)s and kind = 'hold' and state = 'intended') as holds_open,
  (select count(*) from orders.effects where tenant_id = %(tenant_id)s and report_due_at is not null and reported_at is null)
    as reports_open,
  (select count(*) from orders.alerts where tenant_id = %(tenant_id)s and delivered_at is null) as alerts_open
"""
DEFAULT_TENANT = "select tenant_id from refunds.defaults"
