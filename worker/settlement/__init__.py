"""Where a refund settles: one small interface, one module per system.

A system is asked for an effect only with a started permit. What comes back is a value, never an exception: `Settled`,
`Refused` (surely nothing happened) or `NoAnswer` (it may have happened: ask the system, never do it again).
"""

from worker.settlement.gateway import NoAnswer, Refused, Settled, SettlementSystem
from worker.settlement.simulated_refund import SimulatedRefund

__all__ = ["NoAnswer", "Refused", "Settled", "SettlementSystem", "SimulatedRefund"]
