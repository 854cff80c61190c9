"""Every settlement system by name, and the adapter of those behind HTTP: a route's `settles_to` is one of these or the route does not load.

simulated_refund, private_refund             in the ledger itself, always ready
coupon                                       in the ledger itself, not ready without the agent's key
price_difference, platform_backend, ticket   outside, not ready until configured
stripe                                       the payment of the order at Stripe, not ready without a key
ticket_then_platform                         a saga of the last two: a ticket, then the refund

Those in the ledger settle by the write that follows: their effect *is* the execution row, so it is atomic with state and
report. Until that commits nothing has happened, and nothing needs to be recorded before. Those outside speak this:

    GET    {url}/ready                       200 when it can take effects
    POST   {url}/effects                     Idempotency-Key: the reference; {kind, reference, ledger_entry_id, refund_id,
                                             order_ref, amount: {value, currency}} → 200/201 {"status": "done", "reference"}
    GET    {url}/effects/{reference}         200 {"status": "done", "reference"} · 404/410 problem: surely not there
    DELETE {url}/effects/{reference}         204, or 200 {"status": "undone"}; 404/410 problem: nothing there; final

The system must give one effect per reference, and must not let a reference come to life again after a DELETE. Only what
is exactly one of these answers counts: a proxy's login page or error page is no answer.
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
    """One outside system. Without `url` it is never ready. Thread-safe; nothing raises."""

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
        """Whether it is configured and said so itself in the last 5 seconds; waits at most one second for that."""
        return self.is_configured and self._client.is_ready()

    def settle(self, row: LedgerRow, reference: uuid.UUID) -> EffectResult:
        """Ask for the effect once."""
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
        """Whether the effect is there."""
        reply = self._call("GET", f"/effects/{reference}", reference)
        if isinstance(reply, NoAnswer):
            return reply
        if reply.status == 200:
            return _done(reply)
        return EffectRefused("not there") if reply.is_absence else NoAnswer(reply.why)

    def compensate(self, reference: uuid.UUID) -> EffectResult:
        """Take the effect back."""
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
        """True: there is nothing outside to be ready."""
        return True

    def settle(self, row: LedgerRow, reference: uuid.UUID) -> EffectResult:
        """Settled: the execution row that is written next is the effect."""
        return Settled(self.own_reference(reference))

    def look_up(self, reference: uuid.UUID) -> NoAnswer:
        """Only the execution row knows, and it is not asked here: better no answer than a wrong one."""
        return NoAnswer("the effect is the execution row: look there")

    def own_reference(self, reference: uuid.UUID) -> str:
        """The system's own name for the effect, the same for the same reference."""
        return str(reference)


class SimulatedRefund(InLedger):
    """The retail shop's refund."""

    name = "simulated_refund"


class PrivateRefund(InLedger):
    """The private shop's refund API, simulated."""

    name = "private_refund"

    def own_reference(self, reference: uuid.UUID) -> str:
        """As that API would name it."""
        return f"pr_{reference.hex}"


class Coupon(InLedger):
    """A coupon instead of money: not a refund."""

    name = "coupon"
    moves_money = False

    def __init__(self, secret: str = "") -> None:
        self._key = hmac.digest(secret.encode(), b"coupon codes", "sha256") if secret else None

    def is_ready(self) -> bool:
        """Whether there is a secret to make codes with."""
        return self._key is not None

    def settle(self, row: LedgerRow, reference: uuid.UUID) -> EffectResult:
        """Settled with the coupon's code; no answer without a secret."""
        return super().settle(row, reference) if self.is_ready() else NoAnswer("no secret to make a code with")

    def own_reference(self, reference: uuid.UUID) -> str:
        """The coupon's code: 16 characters that a customer can type, and that nobody reckons without the secret."""
        assert self._key is not None
        digest = hmac.digest(self._key, reference.bytes, "sha256")
        code = base64.b32encode(digest)[:16].decode("ascii")
        return "-".join(["CPN", *(code[at : at + 4] for at in range(0, 16, 4))])


class UnknownSystem(Exception):
    """No settlement system has this name; the text names the nearest one."""


_LEFT = "it is finished once that is as it was, and is in doubt, for a person, at its deadline"
_NOWHERE = (
    "it was begun, and no route says where it settles by now: it is finished once its route is back, and is in doubt, for a "
    "person, at its deadline"
)
_OUTSIDE = f"it was begun where the execution is the effect, and its route settles outside by now: {_LEFT}"


class Systems:
    """The systems of one worker. `adapters` are the outside ones as they are, without their record."""

    def __init__(
        self,
        systems: Mapping[str, SettlementSystem],
        adapters: Mapping[str, SettlementSystem],
        book: Effects | None = None,
    ) -> None:
        self._systems = MappingProxyType(dict(systems))
        self.adapters = MappingProxyType(dict(adapters))
        self._book = book

    @classmethod
    def from_settings(cls, settings: WorkerSettings, book: Effects | None = None) -> Systems:
        """All of them. Without a `book` the outside ones are never ready, as their effects could not be recorded."""
        outside = {system.name: system for system in _outside(settings, book)}
        wait = in_flight_seconds(settings.settlement_timeout_seconds)
        inside: list[SettlementSystem] = [
            SimulatedRefund(),
            PrivateRefund(),
            # By a secret that no other program has: the public board has those of confirm links, and the rows' ids.
            Coupon(settings.api_key),
        ]
        sagas = [Saga(name, (Effect(system),), book, in_flight_seconds=wait) for name, system in outside.items()]
        sagas.append(
            Saga(
                "ticket_then_platform",
                (Effect(outside["ticket"]), Effect(outside["platform_backend"])),
                book,
                in_flight_seconds=wait,
            )
        )
        return cls({system.name: system for system in [*inside, *sagas]}, outside, book)

    def find(self, name: str | None) -> SettlementSystem | None:
        """The system of this name; None for a branch that settles nowhere."""
        return None if name is None else self.get(name)

    def is_ready(self, name: str | None) -> bool:
        """Whether there is a system of this name, and it is ready."""
        system = self.find(name)
        return system is not None and system.is_ready()

    @property
    def has_record(self) -> bool:
        """Whether what was begun outside can be read."""
        return self._book is not None

    def begun_in(self, reference: uuid.UUID) -> SettlementSystem | None:
        """The system that an operation was begun in, as its effects on record say, whatever its branch settles in by now.

        None where nothing outside was begun. Raises `LedgerUnavailable`, and `UnknownSystem` for a plan that none here has.
        """
        plans = [record.plan for record in self._book.of_operation(reference)] if self._book is not None else []
        if not plans:
            return None
        for system in self._systems.values():
            if isinstance(system, Saga) and system.has_planned(reference, plans):
                return system
        raise UnknownSystem(f"begun in {plans[0].system}, under a plan that no system here has")

    def why_untried(self, row: LedgerRow, settles_in: str | None) -> str | None:
        """Why nothing is tried of a begun row whose branch settles in `settles_in` by now; None where it is gone on with there."""
        system = self.find(settles_in)
        if system is None:
            # Who closed its branch did not say that what is under way was not paid.
            return _NOWHERE
        if row.permit_token is None:
            # Its question enclosed its start: no permission is on record, without which nothing is asked for outside.
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
        return f"it was begun in {begun.name}, and its route settles elsewhere by now: {_LEFT}"

    def get(self, name: str) -> SettlementSystem:
        """The system of this name. Raises `UnknownSystem`."""
        try:
            return self._systems[name]
        except KeyError:
            raise UnknownSystem(_unknown(name, self.names())) from None

    def configured_outside(self, name: str | None) -> frozenset[str]:
        """The outside systems with an address that settling in `name` reaches; none for what is settled in the ledger."""
        reached = getattr(self._systems.get(name or ""), "reaches", ())
        return frozenset(each for each in reached if getattr(self.adapters.get(each), "is_configured", False))

    def names(self) -> tuple[str, ...]:
        """All names, in the order above."""
        return tuple(self._systems)


def system_names() -> tuple[str, ...]:
    """All names, for those who check a file and have no settings."""
    from worker.refunds.settings import WorkerSettings

    return Systems.from_settings(WorkerSettings()).names()


def _outside(settings: WorkerSettings, book: Effects | None) -> list[HttpSystem | StripeRefunds]:
    wait = settings.settlement_timeout_seconds
    return [
        *(
            HttpSystem(
                each.name, getattr(settings, each.url_field), getattr(settings, each.key_field), wait,
                moves_money=each.moves_money,
            )
            for each in OUTSIDE_SYSTEMS
        ),
        StripeRefunds(settings.stripe_key, book, wait, url=settings.stripe_url),
    ]  # fmt: skip


def _unknown(name: str, names: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.0)
    return f"unknown settlement system {name[:60]!r}; the nearest is {near[0]!r}"
