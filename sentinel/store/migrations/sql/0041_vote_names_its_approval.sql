-- An order's vote may name the approval that was shown; the new text comes with the schema files.
drop function if exists orders.resolve_review(uuid, text, text, uuid, text, text, text, text, text, uuid, uuid);
-- A replay takes its time once it has the operation's row.
drop function if exists sentinel.replay(sentinel.guard_input, sentinel.operations, timestamptz);
