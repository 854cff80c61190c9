"""The database as such: connections, batch commits, ids, migrations, invariants, safety checks; no aggregate of a program."""
