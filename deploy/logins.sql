-- Lets each program's role log in, with a secret of its own from the environment of psql (15 or newer). After `sentinel migrate`, as the same
-- administrator, and again with another secret to replace one:
--
--   AUTHORITY_PASSWORD=… WORKER_PASSWORD=… ORDERS_PASSWORD=… CONSOLE_PASSWORD=… EXPORT_PASSWORD=… BOARD_PASSWORD=… psql -f deploy/logins.sql ADDRESS
--
-- A program that you do not run needs no login: leave its variable out. Letters and digits go into an address as they are (`openssl rand -hex 24`).

\set ON_ERROR_STOP on
\getenv authority AUTHORITY_PASSWORD
\getenv worker WORKER_PASSWORD
\getenv orders ORDERS_PASSWORD
\getenv console CONSOLE_PASSWORD
\getenv export EXPORT_PASSWORD
\getenv board BOARD_PASSWORD

begin;
set local password_encryption = 'scram-sha-256';
\if :{?authority}
alter role sentinel_authority login password :'authority';
\endif
\if :{?worker}
alter role sentinel_worker login password :'worker';
\endif
\if :{?orders}
alter role sentinel_orders login password :'orders';
\endif
\if :{?console}
alter role sentinel_console login password :'console';
\endif
\if :{?export}
alter role sentinel_exporter login password :'export';
\endif
\if :{?board}
alter role board_reader login password :'board';
\endif
commit;
