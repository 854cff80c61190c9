-- Old signatures of functions whose arguments or results changed. Databases that are migrated get the new ones from the schema files.
select 1;
