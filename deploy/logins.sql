-- Lets each program's role log in with a password of its own from the environment of psql (15 or newer). Run it after `sentinel migrate`,
-- as the same administrator, and again with another password to replace one:
--
--   AUTHORITY_PASSWORD=… WORKER_PASSWORD=… ORDERS_PASSWORD=… CONSOLE_PASSWORD=… PUBLIC_PASSWORD=… EXPORT_PASSWORD=… BOARD_PASSWORD=… psql -f deploy/logins.sql ADDRESS
--
-- ADDRESS without the administrator's password, which psql asks for (or takes from ~/.pgpass): every user of the machine can read arguments.
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
-- The passwords go to the server in a query and not in the statements that set them, so that they are neither in its log (log_statement = ddl)
-- nor in pg_stat_statements. A server that logs every statement (log_statement = all) logs them.
select set_config('sentinel_login.' || role, secret, true) from (values
  ('sentinel_authority', :'authority'),
  ('sentinel_worker', :'worker'),
  ('sentinel_orders', :'orders'),
  ('sentinel_console', :'console'),
  ('sentinel_public', :'public'),
  ('sentinel_exporter', :'export'),
  ('board_reader', :'board')) as logins (role, secret) \g /dev/null
do $$
declare
  role text;
begin
  foreach role in array array['sentinel_authority', 'sentinel_worker', 'sentinel_orders', 'sentinel_console', 'sentinel_public',
                              'sentinel_exporter', 'board_reader'] loop
    if current_setting('sentinel_login.' || role) <> '' then
      begin
        execute format('alter role %I login password %L', role, current_setting('sentinel_login.' || role));
      exception when others then
        -- Raised anew: the context of the first error has the statement with the password, and goes into the log too.
        raise exception using errcode = sqlstate, message = sqlerrm;
      end;
    end if;
  end loop;
end $$;
commit;
