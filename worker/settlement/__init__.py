"""Where a refund settles: one small interface, one module per kind of system.

A system is asked for an effect only with a started permit. What comes back is a value, never an exception: `Settled`,
`Refused` (surely nothing happened) or `NoAnswer` (it may have happened: ask the system, never do it again).
"""

from worker.settlement.gateway import Answer, Compensating, NoAnswer, Refused, Settled, SettlementSystem
from worker.settlement.later import deliver_later
from worker.settlement.registry import Systems, UnknownSystem, system_names
from worker.settlement.saga import Effect, Saga
from worker.settlement.simulated_refund import Coupon, PrivateRefund, SimulatedRefund

__all__ = [
    "Answer",
    "Compensating",
    "Coupon",
    "Effect",
    "NoAnswer",
    "PrivateRefund",
    "Refused",
    "Saga",
    "Settled",
    "SettlementSystem",
    "SimulatedRefund",
    "Systems",
    "UnknownSystem",
    "deliver_later",
    "system_names",
]
