-- The whole current schema, in an order in which it can be created in an empty database. `sentinel migrate` reads it; to load it
-- by hand, run as the role that is to own it: psql --single-transaction --file all.sql
-- A file comes after the files whose row types, trigger functions, or functions in an index or default it needs. Function bodies
-- are not checked before they run, so they may name objects that a later file creates.

set local check_function_bodies = off;

\ir version.sql

\ir authority/tenants.sql
\ir authority/append_only.sql
\ir authority/decision_terms.sql
\ir authority/events.sql
\ir authority/operators.sql
\ir authority/agent_keys.sql
\ir authority/policies.sql
\ir authority/operations.sql
\ir authority/limits.sql
\ir authority/approvals.sql
\ir authority/protected_changes.sql
\ir authority/event_endpoints.sql
\ir authority/permits.sql
\ir authority/halts.sql
\ir authority/velocity.sql
\ir authority/outcomes.sql
\ir authority/in_doubt.sql
\ir authority/batches.sql
\ir authority/decisions.sql
\ir authority/decision_one.sql
\ir authority/decision_set.sql
\ir authority/replays.sql
\ir authority/aap_requests.sql
\ir authority/switches.sql
\ir authority/locks.sql
\ir authority/housekeeping.sql

\ir console/sessions.sql
\ir console/sign_in.sql
\ir console/gauges.sql
\ir console/public_ids.sql
\ir console/board.sql

\ir refunds/defaults.sql
\ir refunds/ledger.sql
\ir refunds/orders.sql
\ir refunds/budgets.sql
\ir refunds/executions.sql
\ir refunds/effects.sql
\ir refunds/confirmations.sql
\ir refunds/retries.sql
\ir refunds/proof_images.sql
\ir refunds/reconcile.sql
\ir refunds/settlement_events.sql
\ir refunds/workers.sql

\ir orders/reviews.sql
\ir orders/steps.sql
\ir orders/effects.sql
\ir orders/shop.sql
\ir orders/plain_orders.sql
\ir orders/alerts.sql
\ir orders/analysts.sql

\ir statistics.sql
