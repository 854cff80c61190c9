-- What the public board says of halts: that there is one and whom it covers. Not why, nor who set it.
create view sentinel.public_halts as select tenant_id, scope, target from sentinel.halts where lifted_at is null;
