-- Operators are deactivated and dead letters discarded, as an engineer would say it. Functions come back with the schema files.
alter table sentinel.operators rename column shut_out_by to deactivated_by;
alter table sentinel.operators rename constraint operators_shut_out_by to operators_deactivated_by;
alter table sentinel.operators rename constraint operators_shut_out to operators_deactivated;

alter table sentinel.dead_letters rename column put_away_at to discarded_at;
alter table sentinel.dead_letters rename column put_away_by to discarded_by;
alter table sentinel.dead_letters rename column put_away_reason to discarded_reason;
alter table sentinel.dead_letters rename constraint dead_letters_put_away to dead_letters_discarded;
alter table sentinel.dead_letters rename constraint dead_letters_put_away_reason_check to dead_letters_discarded_reason_check;

drop function if exists sentinel.put_letters_away(uuid, uuid, uuid, text, text, uuid);
drop function if exists refunds.put_reports_away(uuid, uuid[], text);
