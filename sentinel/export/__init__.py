"""Events out: what each event says to the outside, and the sender that delivers it, at least once and in the feed's order."""
