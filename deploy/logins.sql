-- Lets each program's role log in with a password of its own from the environment of psql (15 or newer). Run it after `sentinel migrate`,
-- as the same administrator, and again with another password to replace one:
--
--   AUTHORITY_PASSWORD=… WORKER_PASSWORD=… ORDERS_PASSWORD=… CONSOLE_PASSWORD=… PUBLIC_PASSWORD=… EXPORT_PASSWORD=… BOARD_PASSWORD=… psql -f deploy/logins.sql ADDRESS
--
-- A program that you do not run, or that has a login of your own, needs no password: leave its variable out. Use letters and digits, which
-- need no escaping in a database address (`openssl rand -hex 24`).

\set ON_ERROR_STOP on
-- \getenv leaves a variable unchanged if the environment does not have it.
\set authority ''
\getenv authority AUTHORITY_PASSWORD
\set worker ''
\getenv worker WORKER_PASSWORD
\set orders ''
\getenv orders ORDERS_PASSWORD
\set console ''
\getenv console CONSOLE_PASSWORD
\set public ''
\getenv public PUBLIC_PASSWORD
\set export ''
\getenv export EXPORT_PASSWORD
\set board ''
\getenv board BOARD_PASSWORD

begin;
set local password_encryption = 'scram-sha-256';
select format('alter role %I login password %L', role, secret) from (values
  ('sentinel_authority', :'authority'),
  ('sentinel_worker', :'worker'),
  ('sentinel_orders', :'orders'),
  ('sentinel_console', :'console'),
  ('sentinel_public', :'public'),
  ('sentinel_exporter', :'export'),
  ('board_reader', :'board')) as logins (role, secret)
where secret <> '' \gexec
commit;
