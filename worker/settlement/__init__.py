"""Settlement systems: one small interface, one module per kind of system.

A system is asked for an effect only after the permit was started. The result is a value, never an exception: `Settled`,
`EffectRefused` (certainly nothing happened) or `NoAnswer` (it may have happened: look it up before asking again).
"""

from worker.outbound.effects import EffectRefused, EffectResult, NoAnswer, Settled
from worker.settlement.effects import SettlementSystem, deliver_best_effort
from worker.settlement.registry import SimulatedRefund, Systems, UnknownSystem, system_names
from worker.settlement.saga import Effect, Saga

__all__ = [
    "Effect",
    "EffectRefused",
    "EffectResult",
    "NoAnswer",
    "Saga",
    "Settled",
    "SettlementSystem",
    "SimulatedRefund",
    "Systems",
    "UnknownSystem",
    "deliver_best_effort",
    "system_names",
]
