"""The L2 refund workflow: a declared graph of small steps. Code chooses every next step; most steps decide *not* to refund."""
