"""Authentication: the key in a request's header → a `Caller`.

Keys are cached for less than a second, so that a revoked key stops working within a second. Every made-up but
well-formed key costs a look-up in the database. So look-ups of keys that this process has not accepted are bounded and
have their own threads, and refused keys have their own cache: requests with accepted keys never wait for them. On the
event loop, requests with the same key share its look-up, and wait at most two seconds (`key_lookups.py`).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from sentinel.authority.api.key_lookups import KeyLookUps
from sentinel.authority.engine import Caller
from sentinel.authority.keys import KeyUses, find_key, looks_like_key, secret_hash
from sentinel.authority.metrics import RATE_LIMITED
from sentinel.core.errors import EngineUnavailable, Forbidden, KeyReused, RateLimited, SentinelError, Unauthenticated
from sentinel.platform.http.bodies import MAX_BYTES
from sentinel.platform.http.rate_limit import SharedRateLimit
from sentinel.store.database import Pool

KEY_HASH = "sentinel.key_hash"
"""The name in a request's environment of the accepted key's hash."""
_OVER_RATE = "sentinel.over_rate"
_BYTES_OF_ONE = 4096

_REMEMBER_SECONDS = 0.8
_REFRESH_SECONDS = 0.4
_REMEMBER_MOST = 10_000
_KNOWN_AT_ONCE, _KNOWN_MOST = 4, 1000
"""How many look-ups of previously accepted keys run at once in a process, and how many may be running or queued."""
_NEW_AT_ONCE, _NEW_MOST = 2, 64
"""The same for keys that were not accepted before."""
_NEW_PATIENCE_SECONDS = 0.25
"""How long a call in a thread waits for its look-up to begin."""
_KNOWN_REFUSED = "Too many keys are being looked up."
_NEW_REFUSED = "Too many keys that were not seen before are being looked up."


class Identity:
    """Finds callers by their key and checks rate limit, scope and tenant."""

    def __init__(
        self, pool: Pool, limit: SharedRateLimit, *, uses: KeyUses | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._pool = pool
        self._limit = limit
        self._uses = uses or KeyUses()
        self._clock = clock
        self._known: dict[bytes, tuple[float, Caller]] = {}
        self._unknown: dict[bytes, float] = {}
        look_ups = partial(KeyLookUps, shared_seconds=_REMEMBER_SECONDS, clock=clock)
        self._known_look_ups = look_ups(
            self._find_anew, at_once=_KNOWN_AT_ONCE, most=_KNOWN_MOST, name="known keys", refusal=_KNOWN_REFUSED
        )
        self._new = threading.BoundedSemaphore(_NEW_AT_ONCE)
        self._new_look_ups = look_ups(
            self._find, at_once=_NEW_AT_ONCE, most=_NEW_MOST, name="new keys", refusal=_NEW_REFUSED
        )

    def caller(self, scope: str | None, environ: dict[str, Any]) -> Caller:
        """Return a request's caller; `scope` None requires no scope.

        Raises `Unauthenticated`, `RateLimited`, `Forbidden` (scope, tenant) or `EngineUnavailable`.
        """
        hashed = _hashed(environ)
        return self._accepted(scope, environ, hashed, self._find(hashed))

    def remembered_caller(self, scope: str, environ: dict[str, Any]) -> Caller | None:
        """`caller` from the cache, without a query; None if the key is not cached, then use `caller_async`.

        A cached key in use is looked up again in the background before it expires, so that no request waits for that.
        """
        # Its form need not be checked: a cached key had the right one.
        presented = _presented_key(environ)
        hashed = secret_hash(presented) if presented is not None else b""
        known = self._known.get(hashed)
        if known is None:
            if self._is_unknown(hashed):
                raise Unauthenticated
            return None
        age = self._clock() - known[0]
        if age >= _REMEMBER_SECONDS:
            return None
        if age >= _REFRESH_SECONDS:
            with contextlib.suppress(EngineUnavailable):  # too many are in flight: it is looked up once it has expired
                self._known_look_ups.begin(hashed)
        return self._accepted(scope, environ, hashed, known[1])

    async def caller_async(self, scope: str, environ: dict[str, Any], *, may_wait: bool = False) -> Caller:
        """`caller` on an event loop: the query runs in a thread, and raises `EngineUnavailable` after two seconds.

        With `may_wait` a request is not refused if its key is over its rate; `is_within_rate` says when it may
        continue.
        """
        hashed = _hashed(environ)
        return self._accepted(scope, environ, hashed, await self._find_async(hashed), may_wait=may_wait)

    def is_within_rate(self, environ: dict[str, Any]) -> bool:
        """Return whether a request with `may_wait` is within its key's rate; each call tries to count it again."""
        if environ.get(_OVER_RATE):
            try:
                self._limit.take(environ[KEY_HASH])
            except RateLimited:
                return False
            del environ[_OVER_RATE]
        return True

    async def is_usable(self, environ: dict[str, Any], scope: str) -> bool:
        """Return whether the key of an accepted request is still usable and has the scope; at most a second out of date."""
        hashed = environ[KEY_HASH]
        try:
            caller = await self._find_async(hashed, was_accepted=True)
        except SentinelError:
            return True  # unknown while the database is unavailable; nothing new can be read to send then either
        return caller is not None and scope in caller.scopes

    def _accepted(
        self, scope: str | None, environ: dict[str, Any], hashed: bytes, caller: Caller | None, *, may_wait: bool = False,
    ) -> Caller:  # fmt: skip
        if caller is None:
            raise Unauthenticated
        try:
            self._charge(hashed, requests_in(environ))
        except RateLimited:
            if not may_wait:
                raise
            environ[_OVER_RATE] = True
        if scope is not None and scope not in caller.scopes:
            raise Forbidden(f"this key has no scope {scope}")
        environ[KEY_HASH] = hashed
        if claimed := environ.get("HTTP_X_TENANT_ID"):
            _require_tenant(caller, claimed, "X-Tenant-Id")
        return caller

    def charge_batch(self, environ: dict[str, Any], number: int) -> None:
        """Count the requests of an admitted batch that were not counted when it arrived; `number` is how many it has."""
        if (more := number - requests_in(environ)) > 0:
            self._limit.take(environ[KEY_HASH], more, is_let_in=True)

    def charge_refusal(self, environ: Mapping[str, Any], error: Exception) -> None:
        """Count the recorded request with which an admitted one is in conflict, by its bytes: it is read, decided and told again."""
        if isinstance(error, KeyReused) and (more := error.recorded_bytes // _BYTES_OF_ONE) > 0:
            self._limit.take(environ[KEY_HASH], more, is_let_in=True)

    def _charge(self, key: bytes, cost: int) -> None:
        try:
            self._limit.take(key, cost)
        except RateLimited:
            RATE_LIMITED.inc()
            raise

    async def _find_async(self, hashed: bytes, *, was_accepted: bool = False) -> Caller | None:
        """Return a key's caller, or None. `was_accepted`: look it up with the known keys even if it is not cached any more."""
        known = self._known.get(hashed)
        if known is not None and self._clock() - known[0] < _REMEMBER_SECONDS:
            return known[1]
        if known is None and self._is_unknown(hashed):
            return None
        is_known = known is not None or was_accepted
        return await (self._known_look_ups if is_known else self._new_look_ups).find(hashed)

    def _find(self, hashed: bytes) -> Caller | None:
        known = self._known.get(hashed)
        if known is not None:
            return known[1] if self._clock() - known[0] < _REMEMBER_SECONDS else self._find_anew(hashed)
        if self._is_unknown(hashed):
            return None
        if not self._new.acquire(timeout=_NEW_PATIENCE_SECONDS):
            raise EngineUnavailable(_NEW_REFUSED)
        try:
            return self._find_anew(hashed)
        finally:
            self._new.release()

    def _is_unknown(self, hashed: bytes) -> bool:
        """Return whether the key was looked up recently and is not usable."""
        at = self._unknown.get(hashed)
        return at is not None and self._clock() - at < _REMEMBER_SECONDS

    def _find_anew(self, hashed: bytes) -> Caller | None:
        now = self._clock()
        row = find_key(self._pool, hashed)
        # Cached with the time before the query, so that an answer is never used for longer than promised.
        if row is None or not row.usable:
            if len(self._unknown) >= _REMEMBER_MOST:
                self._unknown.clear()
            self._unknown[hashed] = now
            self._known.pop(hashed, None)
            return None
        caller = Caller(
            row.tenant_id, row.key_id, row.principal_id, row.agent_id, frozenset(row.scopes), row.owner_operator_id
        )
        self._uses.note(row.tenant_id, row.key_id)
        before = self._known.get(hashed)
        if before is not None and before[1] == caller:
            caller = before[1]  # keep the same object, whose hash is cached: other caches are keyed by caller
        elif len(self._known) >= _REMEMBER_MOST:
            self._known.clear()
        self._known[hashed] = (now, caller)
        return caller


def requests_in(environ: Mapping[str, Any]) -> int:
    """Return how many requests one counts as: one, and one more for each whole 4 KiB of its body, because it is stored."""
    declared = environ.get("CONTENT_LENGTH") or ""
    if len(declared) < 4 or not (declared.isascii() and declared.isdigit()):
        return 1  # a short body, or a malformed length, with which the request is refused later
    return requests_of(min(int(declared[:20]), MAX_BYTES))


def requests_of(length: int) -> int:
    """Return how many requests one with `length` bytes counts as."""
    return 1 + length // _BYTES_OF_ONE


def _hashed(environ: Mapping[str, Any]) -> bytes:
    presented = _presented_key(environ)
    if presented is None or not looks_like_key(presented):
        raise Unauthenticated
    return secret_hash(presented)


def _presented_key(environ: Mapping[str, Any]) -> str | None:
    header: str | None = environ.get("HTTP_X_API_KEY")
    if header:
        return header
    scheme, _, token = str(environ.get("HTTP_AUTHORIZATION", "")).partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def require_own(caller: Caller, tenant_id: str | None, agent_id: str) -> None:
    """Raise `Forbidden` if a body names another tenant than the key's, or another agent than the key is bound to."""
    if tenant_id:
        _require_tenant(caller, tenant_id, "tenant_id")
    if caller.agent_id is not None and agent_id != caller.agent_id:
        raise Forbidden("this key is bound to another agent_id")


def _require_tenant(caller: Caller, claimed: str, field: str) -> None:
    if claimed.lower() != str(caller.tenant_id):
        raise Forbidden(f"{field} is not this key's tenant")
