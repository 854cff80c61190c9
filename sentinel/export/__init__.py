"""Export of events: what an event contains for the outside, and the sender, which delivers at least once and in the feed's order."""
