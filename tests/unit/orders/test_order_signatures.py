"""G45 and G47 on the signatures: only what was signed, whole, fresh and with a live secret, is genuine."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import random
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta

import pytest

from tests.support.harness import scaled, seeded
from worker.orders import sources
from worker.orders.sources import TOLERANCE, Scheme, Secret, Signing, Unverified, Verified

NOW = datetime(2026, 11, 21, 10, 0, tzinfo=UTC)
BODY = b'{"order": {"id": "1001", "total": {"value": "49.90", "currency": "EUR"}}, "note": "gr\xc3\xbc\xc3\x9fe"}'
KEY, OLD, OTHER = b"k" * 32, b"o" * 32, b"x" * 32
SIGNINGS = {
    "hex": Signing(Scheme.HEX, (Secret(KEY),), "X-Shop-Hmac-Sha256", "sha256="),
    "hex without a prefix": Signing(Scheme.HEX, (Secret(KEY),), "X-Shop-Hmac-Sha256"),
    "base64": Signing(Scheme.BASE64, (Secret(KEY),), "X-Shopify-Hmac-Sha256"),
    "standard": Signing(Scheme.STANDARD, (Secret(KEY),)),
}
STANDARD = SIGNINGS["standard"]
Verifier = Callable[[Mapping[str, str], bytes], bool]


@pytest.fixture(params=SIGNINGS)
def signing(request: pytest.FixtureRequest) -> Signing:
    return SIGNINGS[request.param]


def good(signing: Signing, headers: Mapping[str, str], body: bytes = BODY, now: datetime = NOW) -> bool:
    return isinstance(signing.verify(headers, body, now), Verified)


def test_what_the_sender_signed_is_genuine_whatever_the_case_of_its_headers(signing: Signing) -> None:
    headers = signing.sign(BODY, NOW, "msg_1")
    for spelt in (headers, {k.lower(): v for k, v in headers.items()}, {k.upper(): v for k, v in headers.items()}):
        assert good(signing, {"Host": "h", **spelt})


def test_the_plain_schemes_are_hmac_sha256_of_the_raw_body() -> None:
    mac = hmac.new(KEY, BODY, hashlib.sha256)
    assert good(SIGNINGS["hex"], {"x-shop-hmac-sha256": "sha256=" + mac.hexdigest()})
    assert good(SIGNINGS["hex"], {"x-shop-hmac-sha256": "sha256=" + mac.hexdigest().upper()})
    assert good(SIGNINGS["base64"], {"X-Shopify-Hmac-Sha256": base64.b64encode(mac.digest()).decode()})


def test_the_published_example_of_standard_webhooks_is_genuine() -> None:
    signing = Signing(Scheme.STANDARD, (Secret(base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")),))
    at, body = datetime.fromtimestamp(1614265330, UTC), b'{"test": 2432232314}'
    headers = {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }
    assert good(signing, headers, body, at)
    assert signing.sign(body, at, "msg_p5jXN8AQM9LWM0D4loKWxJek") == headers


def test_what_the_standardwebhooks_package_signs_is_genuine() -> None:
    package = pytest.importorskip("standardwebhooks")
    secret = "whsec_" + base64.b64encode(KEY).decode()
    signature = package.Webhook(secret).sign("msg_2", NOW, BODY.decode())
    headers = {"webhook-id": "msg_2", "webhook-timestamp": str(int(NOW.timestamp())), "webhook-signature": signature}
    assert good(STANDARD, headers)


# Tampering


def changed_bodies() -> Iterator[bytes]:
    for place in range(len(BODY)):
        for bit in range(8):
            yield BODY[:place] + bytes([BODY[place] ^ 1 << bit]) + BODY[place + 1 :]
        yield BODY[:place] + BODY[place + 1 :]
    yield from (BODY + b" ", b" " + BODY, BODY + b"\n", BODY * 2, b"", BODY.replace(b": ", b":"))


def changed_headers(headers: Mapping[str, str]) -> Iterator[dict[str, str]]:
    for name, value in headers.items():
        yield {key: value for key, value in headers.items() if key != name}
        for place in range(len(value)):
            for bit in range(7):
                yield {**headers, name: value[:place] + chr(ord(value[place]) ^ 1 << bit) + value[place + 1 :]}
            yield {**headers, name: value[:place] + value[place + 1 :]}
            yield {**headers, name: value[:place] + "é" + value[place + 1 :]}
        for odd in (
            "",
            " ",
            value + " ",
            " " + value,
            value + "\n",
            value * 2,
            value + "=",
            f"{value},{value}",
            "é",
            "\ud800",
            "１" * 10,
        ):
            yield {**headers, name: odd}
        # The same header twice: which of them counts would be anybody's guess.
        yield {**{key: text for key, text in headers.items() if key != name}, name.upper(): value, name.lower(): value}


def taken(verify: Verifier, headers: Mapping[str, str]) -> list[object]:
    """Every changed delivery that a verifier takes for genuine, or dies of."""
    found: list[object] = []
    for body in changed_bodies():
        found += [body] if verify(headers, body) else []
    for changed in changed_headers(headers):
        found += [changed] if verify(changed, BODY) else []
    return found


def test_no_delivery_with_one_byte_changed_is_genuine(signing: Signing) -> None:
    headers = signing.sign(BODY, NOW, "msg_1")
    assert good(signing, headers)
    assert taken(lambda changed, body: good(signing, changed, body), headers) == []


def test_a_verifier_that_decodes_what_it_compares_takes_a_changed_signature() -> None:
    """The mutant: base64 has several spellings of the same bytes."""

    def decoded(headers: Mapping[str, str], body: bytes) -> bool:
        try:
            given = base64.b64decode(headers.get("X-Shopify-Hmac-Sha256", "é"))
        except ValueError:
            return False
        return hmac.compare_digest(given, hmac.digest(KEY, body, "sha256"))

    assert taken(decoded, SIGNINGS["base64"].sign(BODY, NOW, ""))


def test_a_verifier_of_parsed_bodies_takes_a_changed_body() -> None:
    """The mutant: it signs what it understood, not what came."""

    def parsed(headers: Mapping[str, str], body: bytes) -> bool:
        try:
            again = json.dumps(json.loads(body), ensure_ascii=False).encode()
        except ValueError:
            return False
        return good(SIGNINGS["base64"], headers, again)

    assert b" " + BODY in taken(parsed, SIGNINGS["base64"].sign(BODY, NOW, ""))


def test_another_secret_scheme_or_header_is_not_genuine(signing: Signing) -> None:
    wrong = Signing(signing.scheme, (Secret(OTHER),), signing.header, signing.prefix)
    assert signing.verify(wrong.sign(BODY, NOW, "msg_1"), BODY, NOW) == Unverified("mismatch")
    for other in SIGNINGS.values():
        if other is not signing and {other.header, signing.header} != {"X-Shop-Hmac-Sha256"}:
            assert signing.verify(other.sign(BODY, NOW, "msg_1"), BODY, NOW) == Unverified("header")
    assert signing.verify({}, BODY, NOW) == Unverified("header")


def test_what_decides_is_the_comparison_in_constant_time_over_every_pair(
    signing: Signing, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = Signing(signing.scheme, (Secret(KEY), Secret(OLD, NOW + timedelta(1))), signing.header, signing.prefix)
    headers = two.sign(BODY, NOW, "msg_1")
    compared: list[bool] = []
    real = hmac.compare_digest

    def counted(one: bytes, other: bytes) -> bool:
        compared.append(real(one, other))
        return compared[-1]

    monkeypatch.setattr(sources.hmac, "compare_digest", counted)
    assert good(two, headers)
    assert compared == [True, False], "the second is compared although the first was right"
    monkeypatch.setattr(sources.hmac, "compare_digest", lambda one, other: False)
    assert not good(two, headers)


# Standard Webhooks


@pytest.mark.parametrize(
    "seconds, fresh", [(0, True), (-300, True), (300, True), (-301, False), (301, False), (-86400, False)]
)
def test_five_minutes_either_way_are_fresh_and_a_second_more_is_not(seconds: int, fresh: bool) -> None:
    assert timedelta(seconds=300) == TOLERANCE
    headers = STANDARD.sign(BODY, NOW + timedelta(seconds=seconds), "msg_1")
    assert STANDARD.verify(headers, BODY, NOW) == (Verified() if fresh else Unverified("stale"))


def by_hand(delivery_id: str, seconds: str, signature: str | None = None, key: bytes = KEY) -> dict[str, str]:
    mac = hmac.digest(key, f"{delivery_id}.{seconds}.".encode() + BODY, "sha256")
    return {
        "webhook-id": delivery_id,
        "webhook-timestamp": seconds,
        "webhook-signature": signature or "v1," + base64.b64encode(mac).decode(),
    }


AT = str(int(NOW.timestamp()))
RIGHT = by_hand("msg_1", AT)["webhook-signature"]


@pytest.mark.parametrize(
    "seconds", [f"{AT}.0", f"{AT[:4]}_{AT[4:]}", "".join(chr(ord(c) + 0xFEE0) for c in AT), f"+{AT}", f"0{AT}", f" {AT}", f"{AT} ",
                f"{AT}\n", "-1", "1e9", hex(int(AT)), "", "nan", "9" * 400],
)  # fmt: skip
def test_a_time_that_is_no_plain_number_is_not_genuine_though_signed(seconds: str) -> None:
    assert not good(STANDARD, by_hand("msg_1", seconds))


@pytest.mark.parametrize("delivery_id", ["", "m.1", "m 1", "m\n1", "mé", "m" * 129, "m\x00", " m"])
def test_an_id_of_another_form_is_not_genuine_though_signed(delivery_id: str) -> None:
    assert not good(STANDARD, by_hand(delivery_id, AT))


def test_a_dot_cannot_be_shifted_between_id_time_and_body() -> None:
    signed = STANDARD.sign(b"5." + BODY, NOW, "m1")
    shifted = {**signed, "webhook-id": f"m1.{AT}", "webhook-timestamp": "5"}
    assert not good(STANDARD, shifted, BODY, datetime.fromtimestamp(5, UTC))


@pytest.mark.parametrize(
    "signature", ["", ",", "v1", "v1,", RIGHT[3:], f"{RIGHT},", f"{RIGHT},x", f"v1,{RIGHT}", f"{RIGHT}  {RIGHT}", f" {RIGHT}", f"{RIGHT} ",
                  f"{RIGHT}\t{RIGHT}", f"{RIGHT};{RIGHT}", RIGHT.replace("v1", "v2"), RIGHT.replace("v1", "V1"), RIGHT.rstrip("="),
                  RIGHT.replace("v1", "v1a"), "v1,é", "v1,!!!!", " ".join(["v1,AAAA"] * 17), f"{RIGHT} " + "v1,AAAA " * 16],
)  # fmt: skip
def test_a_list_of_signatures_in_another_form_is_not_genuine(signature: str) -> None:
    assert not good(STANDARD, by_hand("msg_1", AT, signature or " "))
    assert not good(STANDARD, {**by_hand("msg_1", AT), "webhook-signature": signature})


def test_one_right_signature_among_several_is_enough() -> None:
    wrong = by_hand("msg_1", AT, key=OTHER)["webhook-signature"]
    for signature in (f"{wrong} {RIGHT}", f"{RIGHT} {wrong}", f"v1a,{'A' * 86}== {RIGHT}"):
        assert good(STANDARD, by_hand("msg_1", AT, signature))
    assert not good(STANDARD, by_hand("msg_1", AT, f"{wrong} {wrong}"))


# Rotation


def refused_in_rotation(receiver: Callable[[datetime], Signing], seed: int) -> tuple[int, int]:
    """How many of a sender's deliveries around its change of secret are refused, and how many with the old one after the end."""
    chance, new = seeded(seed, scaled(1000)), SIGNINGS["base64"]
    old = Signing(new.scheme, (Secret(OLD),), new.header)
    changed, end = NOW + timedelta(hours=12), NOW + timedelta(hours=24)
    refused = late = 0
    for _ in range(scaled(1000)):
        at = NOW + timedelta(seconds=chance.uniform(0, 48 * 3600))
        sender = old if at < changed else new
        refused += not good(receiver(at), sender.sign(BODY, at, ""), BODY, at)
        late += at >= end and not good(receiver(at), old.sign(BODY, at, ""), BODY, at)
    return refused, late


def test_a_rotation_refuses_nothing_and_the_old_secret_has_an_end() -> None:
    end = NOW + timedelta(hours=24)
    both = Signing(Scheme.BASE64, (Secret(KEY), Secret(OLD, end)), "X-Shopify-Hmac-Sha256")
    refused, late = refused_in_rotation(lambda at: both, random.randrange(10**6))
    assert refused == 0
    assert late > 0
    old = Signing(Scheme.BASE64, (Secret(OLD),), both.header).sign(BODY, NOW, "")
    assert good(both, old, now=end - timedelta(microseconds=1))
    assert not good(both, old, now=end)


def test_a_receiver_with_one_secret_at_a_time_drops_deliveries() -> None:
    """The mutant: it changes its secret an hour before the sender does."""
    one = {True: Signing(Scheme.BASE64, (Secret(OLD),), "X-Shopify-Hmac-Sha256"), False: SIGNINGS["base64"]}
    refused, _ = refused_in_rotation(lambda at: one[at < NOW + timedelta(hours=11)], 1)
    assert refused > 0


def test_without_a_live_secret_nothing_is_genuine(signing: Signing) -> None:
    headers = signing.sign(BODY, NOW, "msg_1")
    for secrets in ((), (Secret(KEY, NOW),)):
        closed = Signing(signing.scheme, secrets, signing.header, signing.prefix)
        assert closed.verify(headers, BODY, NOW) == Unverified("no_secret")


def test_a_secret_is_in_no_repr(signing: Signing) -> None:
    assert "kkkk" not in repr(signing)
