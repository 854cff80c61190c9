"""Every settlement system by name, and the adapter of those behind HTTP. Routes may name no other.

simulated_refund, private_refund             in the ledger itself, always ready
coupon                                       in the ledger itself, not ready without the agent's key
price_difference, platform_backend, ticket   outside, not ready until configured
stripe                                       the payment of the order at Stripe, not ready without a key
ticket_then_platform                         a saga of two of them: a ticket, then the refund at platform_backend

Those in the ledger settle by the write that follows: their effect *is* the execution row, so it is atomic with state
and report. Until that commits nothing has happened, and nothing needs to be recorded before. Those outside, except
stripe, offer this HTTP interface:

    GET    {url}/ready                       200 when it can take effects
    POST   {url}/effects                     Idempotency-Key: the reference; {kind, reference, ledger_entry_id, refund_id,
                                             order_ref, amount: {value, currency}} → 200/201 {"status": "done", "reference"}
    GET    {url}/effects/{reference}         200 {"status": "done", "reference"} · 404/410 problem: surely not there
    DELETE {url}/effects/{reference}         204, or 200 {"status": "undone"}; 404/410 problem: nothing there; final

A system must make at most one effect per reference, and none for a reference after its DELETE. Only exactly one of
these answers counts: a proxy's login page or error page is no answer.
"""

from __future__ import annotations

import base64
import difflib
import hmac
import time
import uuid
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from sentinel.core.money import money_out
from sentinel.platform.outbound.client import JsonClient
from sentinel.platform.outside_systems import OUTSIDE_SYSTEMS
from worker.outbound.effects import EffectRefused, EffectResult, NoAnswer, Reply, Settled, call_effect, one_line
from worker.refunds.ledger import LedgerUnavailable
from worker.refunds.rows import LedgerRow
from worker.settlement.effects import Effects, SettlementSystem
from worker.settlement.saga import Effect, Saga, in_flight_seconds
from worker.settlement.stripe_refunds import StripeRefunds

# A system behind HTTP; not ready until it is configured.


class HttpSystem:
    """One outside system behind HTTP. Without `url` it is never ready. Thread-safe; nothing raises."""

    def __init__(
        self, name: str, url: str | None, api_key: str | None, timeout_seconds: float = 5.0, *, moves_money: bool = True,
        now: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.name, self.moves_money = name, moves_money
        self._client = JsonClient(url or "", api_key or "", timeout_seconds, now=now)

    @property
    def is_configured(self) -> bool:
        """Whether it has an address."""
        return bool(self._client.url)

    def is_ready(self) -> bool:
        """Whether it is configured, and its health check passed within the last 5 seconds; waits at most one second for the check."""
        return self.is_configured and self._client.is_ready()

    def settle(self, row: LedgerRow, reference: uuid.UUID) -> EffectResult:
        """Request the effect once."""
        body = {
            "kind": self.name, "reference": str(reference), "ledger_entry_id": row.ledger_entry_id,
            "refund_id": row.refund_id, "order_ref": row.order_ref, "amount": money_out(row.money),
            **({"source": row.source} if row.source else {}),
        }  # fmt: skip
        reply = self._call("POST", "/effects", reference, body)
        if isinstance(reply, NoAnswer):
            return reply
        return _done(reply) if reply.is_done else reply.not_done()

    def look_up(self, reference: uuid.UUID) -> EffectResult:
        """Look whether the effect is there."""
        reply = self._call("GET", f"/effects/{reference}", reference)
        if isinstance(reply, NoAnswer):
            return reply
        if reply.status == 200:
            return _done(reply)
        return EffectRefused("not there") if reply.is_absence else NoAnswer(reply.why)

    def compensate(self, reference: uuid.UUID) -> EffectResult:
        """Undo the effect."""
        reply = self._call("DELETE", f"/effects/{reference}", reference)
        if isinstance(reply, NoAnswer):
            return reply
        undone = reply.status == 200 and reply.body.get("status") == "undone"
        if reply.status == 204 or undone or reply.is_absence:
            return Settled(str(reference))
        return reply.not_done()

    def _call(self, method: str, path: str, key: uuid.UUID, body: object = None) -> Reply | NoAnswer:
        return call_effect(self._client, method, path, key, body) if self._client.url else NoAnswer("not configured")


def _done(reply: Reply) -> Settled | NoAnswer:
    reference = reply.body.get("reference")
    if reply.body.get("status") != "done" or not isinstance(reference, str) or not one_line(reference):
        return NoAnswer(f"a {reply.status} that does not say done")
    return Settled(one_line(reference))


# Systems by name.

if TYPE_CHECKING:
    from worker.refunds.settings import WorkerSettings


class InLedger:
    """A simulated system: always ready; nothing leaves the ledger's database."""

    name: str
    moves_money = True
    settles_in_ledger = True

    def is_ready(self) -> bool:
        """Return True: there is no outside system that must be ready."""
        return True

    def settle(self, row: LedgerRow, reference: uuid.UUID) -> EffectResult:
        """Return `Settled`: the execution row that is written next is the effect."""
        return Settled(self.own_reference(reference))

    def look_up(self, reference: uuid.UUID) -> NoAnswer:
        """Return `NoAnswer`: only the execution row says whether the effect is there, and it is not read here."""
        return NoAnswer("the effect is the execution row: look there")

    def own_reference(self, reference: uuid.UUID) -> str:
        """The system's own name for the effect, the same for the same reference."""
        return str(reference)


class SimulatedRefund(InLedger):
    """The retail shop's refund, simulated."""

    name = "simulated_refund"


class PrivateRefund(InLedger):
    """The private shop's refund API, simulated."""

    name = "private_refund"

    def own_reference(self, reference: uuid.UUID) -> str:
        """The name that the API would give the refund."""
        return f"pr_{reference.hex}"


class Coupon(InLedger):
    """A coupon instead of money, which does not count as a refund."""

    name = "coupon"
    moves_money = False

    def __init__(self, secret: str = "") -> None:
        self._key = hmac.digest(secret.encode(), b"coupon codes", "sha256") if secret else None

    def is_ready(self) -> bool:
        """Whether there is a secret to derive codes from."""
        return self._key is not None

    def settle(self, row: LedgerRow, reference: uuid.UUID) -> EffectResult:
        """Return `Settled` with the coupon's code, or `NoAnswer` without a secret."""
        return (
            super().settle(row, reference) if self.is_ready() else NoAnswer("no secret from which a code can be made")
        )

    def own_reference(self, reference: uuid.UUID) -> str:
        """The coupon's code: 16 characters that a customer can type, and that cannot be computed without the secret."""
        assert self._key is not None
        digest = hmac.digest(self._key, reference.bytes, "sha256")
        code = base64.b32encode(digest)[:16].decode("ascii")
        return "-".join(["CPN", *(code[at : at + 4] for at in range(0, 16, 4))])


class UnknownSystem(Exception):
    """No settlement system here has this name or this plan; the text of an unknown name has the nearest one."""


_LEFT = "it is finished once that is restored; at its deadline it is in doubt, for a person"
_NOWHERE = (
    "it was started, but no route says any more where it settles: it is finished once its route is restored; at its "
    "deadline it is in doubt, for a person"
)
_OUTSIDE = f"it was started in the ledger itself, and its route now settles outside: {_LEFT}"


class Systems:
    """The settlement systems of one worker. `adapters` are the bare outside systems by name, without the record of effects."""

    def __init__(
        self,
        systems: Mapping[str, SettlementSystem],
        adapters: Mapping[str, SettlementSystem],
        record: Effects | None = None,
    ) -> None:
        self._systems = MappingProxyType(dict(systems))
        self.adapters = MappingProxyType(dict(adapters))
        self._record = record

    @classmethod
    def from_settings(cls, settings: WorkerSettings, record: Effects | None = None) -> Systems:
        """Make all systems. Without a `record`, where their effects are written, the outside ones are never ready."""
        outside = {system.name: system for system in _outside(settings, record)}
        wait = in_flight_seconds(settings.settlement_timeout_seconds)
        inside: list[SettlementSystem] = [
            SimulatedRefund(),
            PrivateRefund(),
            # Use the agent's key, which no other program has: the public board has the secrets of confirm links and the
            # rows' ids, and could compute codes from them.
            Coupon(settings.api_key),
        ]
        sagas = [Saga(name, (Effect(system),), record, in_flight_seconds=wait) for name, system in outside.items()]
        sagas.append(
            Saga(
                "ticket_then_platform",
                (Effect(outside["ticket"]), Effect(outside["platform_backend"])),
                record,
                in_flight_seconds=wait,
            )
        )
        return cls({system.name: system for system in [*inside, *sagas]}, outside, record)

    def find(self, name: str | None) -> SettlementSystem | None:
        """The system of this name; None for None, a branch that settles nowhere. Raises `UnknownSystem`."""
        return None if name is None else self.get(name)

    def is_ready(self, name: str | None) -> bool:
        """Whether the system of this name is ready; False for None. Raises `UnknownSystem`."""
        system = self.find(name)
        return system is not None and system.is_ready()

    @property
    def has_record(self) -> bool:
        """Whether there is a record of outside effects to read."""
        return self._record is not None

    def begun_in(self, reference: uuid.UUID) -> SettlementSystem | None:
        """The system whose plan an operation's recorded effects belong to, not always the branch's present system.

        None where nothing was begun outside. Raises `LedgerUnavailable`, and `UnknownSystem` where no system has that
        plan.
        """
        plans = [record.plan for record in self._record.of_operation(reference)] if self._record is not None else []
        if not plans:
            return None
        for system in self._systems.values():
            if isinstance(system, Saga) and system.has_planned(reference, plans):
                return system
        raise UnknownSystem(f"started in {plans[0].system}, under a plan that no system here has")

    def why_untried(self, row: LedgerRow, settles_in: str | None) -> str | None:
        """Why a begun row must not be continued in `settles_in`, its branch's present system; None where it may be continued there."""
        system = self.find(settles_in)
        if system is None:
            # The branch settles nowhere now, but what was begun before may have been paid.
            return _NOWHERE
        if row.permit_token is None:
            # Its question enclosed the start, so no permit is on record, and without one no outside system is asked.
            return None if getattr(system, "settles_in_ledger", False) else _OUTSIDE
        assert row.start_id is not None
        try:
            begun = self.begun_in(row.start_id)
        except UnknownSystem as error:
            return f"it was {error}: {_LEFT}"
        except LedgerUnavailable as error:
            return f"the record: {error}"
        if begun is None or begun is system:
            return None
        return f"it was started in {begun.name}, and its route now settles elsewhere: {_LEFT}"

    def get(self, name: str) -> SettlementSystem:
        """The system of this name. Raises `UnknownSystem`."""
        try:
            return self._systems[name]
        except KeyError:
            raise UnknownSystem(_unknown(name, self.names())) from None

    def configured_outside(self, name: str | None) -> frozenset[str]:
        """The names of the configured outside systems that settling in `name` uses; empty for a system in the ledger."""
        reached = getattr(self._systems.get(name or ""), "reaches", ())
        return frozenset(each for each in reached if getattr(self.adapters.get(each), "is_configured", False))

    def names(self) -> tuple[str, ...]:
        """The names of all systems."""
        return tuple(self._systems)


def system_names() -> tuple[str, ...]:
    """The names of all systems, for callers that check a file without a worker's settings."""
    from worker.refunds.settings import WorkerSettings

    return Systems.from_settings(WorkerSettings()).names()


def reached_by(name: str) -> tuple[str, ...]:
    """The names of the outside systems that settling in `name` uses; empty for a system in the ledger. Raises `UnknownSystem`."""
    from worker.refunds.settings import WorkerSettings

    return tuple(getattr(Systems.from_settings(WorkerSettings()).get(name), "reaches", ()))


def _outside(settings: WorkerSettings, record: Effects | None) -> list[HttpSystem | StripeRefunds]:
    wait = settings.settlement_timeout_seconds
    return [
        *(
            HttpSystem(
                each.name, getattr(settings, each.url_field), getattr(settings, each.key_field), wait,
                moves_money=each.moves_money,
            )
            for each in OUTSIDE_SYSTEMS
        ),
        StripeRefunds(settings.stripe_key, record, wait, url=settings.stripe_url),
    ]  # fmt: skip


def _unknown(name: str, names: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.0)
    return f"unknown settlement system {name[:60]!r}; the nearest is {near[0]!r}"
