-- A switch that was off goes on for a declared share at most: flip_switch takes it.
drop function sentinel.flip_switch(uuid, text, text, text, integer, text, text, uuid);
