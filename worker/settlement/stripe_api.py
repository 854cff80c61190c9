"""The part of Stripe's API that refunds need, over the `stripe` package: exchanges are bounded and not retried, errors are values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import orjson

from sentinel.platform.outbound import client as outbound
from worker.outbound.effects import EffectRefused, NoAnswer, one_line

if TYPE_CHECKING:
    import stripe

T = TypeVar("T")

API = "https://api.stripe.com"
MAX_BYTES, PAGE, MAX_REFUNDS = 4 << 20, 100, 1000

_NOT_NOW = frozenset(
    {"lock_timeout", "rate_limit", "api_key_expired", "platform_api_key_expired", "idempotency_key_in_use"}
)
"""Error codes of temporary refusals: a later attempt may succeed."""


def result_of_error(status: int | None, code: str | None, body: object) -> EffectRefused | NoAnswer:
    """Map an error of Stripe to a final refusal, or to no answer where a later attempt may succeed.

    400, 402 and 404 with Stripe's own error object refuse the effect, except for codes of `_NOT_NOW` and for a key that
    was used with other parameters, under which another refund may have been made. 401, 403, 409, 429 and 5xx are not
    final.
    """
    error = body.get("error") if isinstance(body, Mapping) else None
    if not isinstance(error, Mapping):
        return NoAnswer(f"{status} without a Stripe error")
    kind, code = str(error.get("type")), code or error.get("code")
    why = one_line(f"{status} {code or kind}", 100)
    if status in (400, 402, 404) and kind in ("invalid_request_error", "card_error") and code not in _NOT_NOW:
        return EffectRefused(why)
    return NoAnswer(why)


class StripeApi:
    """Stripe's API under one key; `seconds` is the timeout of each exchange. Without a key nothing is asked. Thread-safe; nothing raises."""

    def __init__(self, api_key: str, url: str = API, seconds: float = 5.0) -> None:
        self._api_key, self._url, self._seconds = api_key, url.rstrip("/"), seconds

    def can_read_refunds(self, seconds: float) -> bool:
        """Whether Stripe lets the key read refunds; False without an answer within `seconds`."""
        asked = self._asked(lambda: self._client(seconds).v1.refunds.list({"limit": 1}))
        return not isinstance(asked, EffectRefused | NoAnswer)

    def refunds_of(self, payment_ref: str) -> list[dict[str, Any]] | EffectRefused | NoAnswer:
        """Read all refunds of a payment as Stripe's refund objects, newest first; `NoAnswer` beyond `MAX_REFUNDS`."""

        def read() -> list[dict[str, Any]]:
            asked: Any = {**_of(payment_ref), "limit": PAGE}
            found: list[dict[str, Any]] = []
            for refund in self._client().v1.refunds.list(asked).auto_paging_iter():
                if len(found) >= MAX_REFUNDS:
                    raise _TooManyRefunds
                found.append(_refund_object(refund.to_dict()))
            return found

        return self._asked(read)

    def currency_of(self, payment_ref: str) -> str | EffectRefused | NoAnswer:
        """Read the currency that a payment was made in, as ISO 4217 code in capitals."""

        def read() -> str:
            v1 = self._client().v1
            is_intent = payment_ref.startswith("pi_")
            paid: Any = v1.payment_intents.retrieve(payment_ref) if is_intent else v1.charges.retrieve(payment_ref)
            currency = paid.to_dict().get("currency")
            if not isinstance(currency, str) or not (currency.isascii() and currency.isalpha() and len(currency) == 3):
                raise ValueError("no payment object")
            return currency.upper()

        return self._asked(read)

    def refund(
        self, payment_ref: str, amount: int, key: str, metadata: Mapping[str, str]
    ) -> dict[str, Any] | EffectRefused | NoAnswer:
        """Refund `amount` (in Stripe's units) under the idempotency key `key`; return Stripe's refund object."""
        asked: Any = {**_of(payment_ref), "amount": amount, "metadata": dict(metadata)}
        return self._asked(lambda: self._client().v1.refunds.create(asked, {"idempotency_key": key}).to_dict())

    def _asked(self, ask: Callable[[], T]) -> T | EffectRefused | NoAnswer:
        return _asked(ask) if self._api_key else NoAnswer("not configured")

    def _client(self, seconds: float | None = None) -> stripe.StripeClient:
        import stripe

        return stripe.StripeClient(
            self._api_key, base_addresses={"api": self._url}, max_network_retries=0,
            http_client=_bounded_http(seconds or self._seconds),
        )  # fmt: skip


class _TooManyRefunds(Exception):
    """The payment has more than `MAX_REFUNDS` refunds."""


def _of(payment_ref: str) -> dict[str, str]:
    return {"payment_intent" if payment_ref.startswith("pi_") else "charge": payment_ref}


def _asked(ask: Callable[[], T]) -> T | EffectRefused | NoAnswer:
    """Call Stripe; return its answer, or the result that its error means for the effect."""
    import stripe

    try:
        return ask()
    except _TooManyRefunds:
        return NoAnswer(f"the payment has more than {MAX_REFUNDS} refunds")
    except stripe.APIConnectionError as error:
        return NoAnswer(one_line(error.user_message or "no connection", 60))
    except stripe.StripeError as error:
        return result_of_error(error.http_status, error.code, error.json_body)
    except Exception as error:
        # A 200 with an unexpected body: the request may have taken effect.
        return NoAnswer(f"an answer in an unexpected form: {type(error).__name__}")


def _refund_object(found: dict[str, Any]) -> dict[str, Any]:
    """Check the types of the fields of a refund that are used here. Raises `ValueError` for another form."""
    if not isinstance(found.get("metadata") or {}, Mapping) or not isinstance(found.get("amount") or 0, int):
        raise ValueError("no refund object")
    return found


def _bounded_http(seconds: float) -> stripe.HTTPClient:
    import stripe

    class BoundedHttp(stripe.HTTPClient):
        """Sends the package's requests over our outbound client: one deadline for the whole exchange, no redirects, bounded answers."""

        name = "bounded"

        def request(
            self, method: str, url: str, headers: Mapping[str, str] | None, post_data: Any = None, *,
            _usage: list[str] | None = None,
        ) -> tuple[str, int, Mapping[str, str]]:  # fmt: skip
            """Make one exchange; return (body, status, headers). Raises `stripe.APIConnectionError`."""
            data = post_data.encode() if isinstance(post_data, str) else post_data
            found = outbound.exchange(
                method.upper(), url, data or None, headers=headers, deadline_seconds=seconds, max_bytes=MAX_BYTES
            )
            if isinstance(found, outbound.NoResponse):
                raise stripe.APIConnectionError(str(found.kind))  # type: ignore[no-untyped-call]
            try:
                is_object = isinstance(orjson.loads(found.body), dict)
            except orjson.JSONDecodeError:
                is_object = False
            if not is_object:
                raise stripe.APIConnectionError(f"{found.status} without a JSON object")  # type: ignore[no-untyped-call]
            return found.body.decode(), found.status, {}

        def close(self) -> None:
            """Do nothing: no connection is kept open."""

    return BoundedHttp(async_fallback_client=None)
