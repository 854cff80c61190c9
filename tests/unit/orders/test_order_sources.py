"""The sources file: read strictly, secrets from the environment only, and the last good one stays in force."""

from __future__ import annotations

import base64
import logging
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from sentinel.platform.resources import policies_dir
from sentinel.policy.errors import PolicyError
from worker.orders.sources import FILE_NAME, Rate, Scheme, Sources, SourcesFile, Unverified, Verified

NOW = datetime(2026, 11, 21, 10, 0, tzinfo=UTC)
WHSEC = "whsec_" + base64.b64encode(b"w" * 24).decode()
ENV = {"ORDERS_DEMO_SECRET": "d" * 32, "SHOP_WEBHOOK_SECRET": "s" * 32, "SHOPIFY_WEBHOOK_SECRET": "y" * 32,
       "STANDARD_WEBHOOK_SECRET": WHSEC}  # fmt: skip
SAMPLE = """\
sources:
  mine:
    scheme: hex
    header: X-Mine
    prefix: "sha256="
    secret: MINE_SECRET
    old_secret: {env: MINE_OLD, until: "2026-12-31T12:00:00Z"}
    rate: {burst: 5, per_second: 2}
    fields:
      amount: [order.total, order.amount]
      currency: order.currency
    lookups:
      - url: "https://accounts.example.com/a/{account_ref}?order={order_id}"
        key: MINE_KEY
        fields: {account_age_days: age.days}
        timeout_ms: 250
  other:
    scheme: standard_webhooks
    secret: OTHER_SECRET
    fields: {amount: amount}
"""
SAMPLE_ENV = {"MINE_SECRET": "m" * 16, "MINE_OLD": "o" * 16, "MINE_KEY": "k-1", "OTHER_SECRET": WHSEC}


def load(folder: Path, text: str, env: dict[str, str] | None = None) -> Sources:
    path = folder / FILE_NAME
    path.write_text(text)
    return Sources.load(path, SAMPLE_ENV if env is None else env)


def test_the_shipped_file_is_good_and_each_of_its_sources_takes_what_is_signed_for_it() -> None:
    sources = Sources.load(policies_dir() / FILE_NAME, ENV)
    assert [source.name for source in sources.all] == ["demo", "shop", "shopify", "standard"]
    assert sources.closed() == ()
    for source in sources.all:
        headers = source.signing.sign(b"{}", NOW, "msg_1")
        for other in sources.all:
            verified = isinstance(sources.verify(other.name, headers, b"{}", NOW), Verified)
            assert verified is (other is source), "a secret is good for its own source only"
    assert {source.signing.scheme for source in sources.all} == set(Scheme)


def test_a_source_without_its_secret_is_closed_and_one_that_is_not_there_verifies_nothing() -> None:
    sources = Sources.load(policies_dir() / FILE_NAME, {"SHOP_WEBHOOK_SECRET": " "})
    assert sources.closed() == ("demo", "shop", "shopify", "standard")
    assert not any(source.is_open for source in sources.all)
    assert sources.verify("shop", {"X-Shop-Hmac-Sha256": "0" * 64}, b"{}", NOW) == Unverified("no_secret")
    assert sources.verify("nobody", {}, b"{}", NOW) == Unverified("no_source")


def test_everything_in_the_file_is_read(tmp_path: Path) -> None:
    source = load(tmp_path, SAMPLE).find("mine")
    assert source is not None
    assert (source.signing.header, source.signing.prefix, source.rate) == ("X-Mine", "sha256=", Rate(5, 2))
    assert [(secret.key, secret.until) for secret in source.signing.secrets] == [
        (b"m" * 16, None), (b"o" * 16, datetime(2026, 12, 31, 12, tzinfo=UTC)),
    ]  # fmt: skip
    [lookup] = source.lookups
    assert (lookup.key, lookup.timeout_seconds) == ("k-1", 0.25)
    assert lookup.fields == {"account_age_days": (("age", "days"),)}
    assert "k-1" not in repr(source) and "mmm" not in repr(source)
    assert load(tmp_path, SAMPLE).find("other").rate == Rate(120, 20)  # type: ignore[union-attr]


def test_the_secret_of_standard_webhooks_is_taken_with_and_without_its_mark(tmp_path: Path) -> None:
    for text in (WHSEC, WHSEC.removeprefix("whsec_")):
        source = load(tmp_path, SAMPLE, {"OTHER_SECRET": text}).find("other")
        assert source is not None and source.signing.secrets[0].key == b"w" * 24


@pytest.mark.parametrize(
    "old, new, line, message",
    [
        ("scheme: hex", "scheme: hexx", 3, 'did you mean "hex"'),
        ("    header: X-Mine\n", "", 3, '"header" is missing'),
        ("header: X-Mine", "headr: X-Mine", 4, 'did you mean "header"'),
        ("header: X-Mine", 'header: "X Mine"', 4, "is not the name of a header"),
        ("scheme: standard_webhooks\n", "scheme: standard_webhooks\n    header: X-Mine\n", 19, "defines its own headers"),
        ("secret: MINE_SECRET", "secret: hunter2", 6, "name of an environment variable"),
        ("secret: OTHER_SECRET", "secret: MINE_SECRET", 19, "at least 24 bytes"),
        ("    secret: MINE_SECRET\n", "", 3, '"secret" is missing'),
        ('until: "2026-12-31T12:00:00Z"', "until: 2026-12-31", 7, "in quotes"),
        ('until: "2026-12-31T12:00:00Z"', 'until: "2026-12-31"', 7, "with its zone"),
        ('until: "2026-12-31T12:00:00Z"', 'until: "soon"', 7, "with its zone"),
        (', until: "2026-12-31T12:00:00Z"', "", 7, '"until" is missing'),
        ("burst: 5", "burst: 0", 8, "between 1 and"),
        ("currency: order.currency", "curency: order.currency", 11, 'did you mean "currency"'),
        ("amount: [order.total, order.amount]", "email: order.email", 10, '"amount" is missing'),
        ("[order.total, order.amount]", '["order..total"]', 10, "dotted path"),
        ("{account_ref}", "{account}", 13, "unknown placeholder {account}"),
        ("https://accounts.example.com/a/{account_ref}", "https://{account_ref}.example.com/", 13, "must not have a placeholder in its host"),
        ("https://accounts.example.com", "http://accounts.example.com", 13, "scheme"),
        ("https://accounts.example.com", "https://169.254.169.254", 13, "inside_address"),
        ("https://accounts.example.com", "https://localhost", 13, "host"),
        ("https://accounts.example.com", "https://accounts.example.com:22", 13, "port"),
        ("{account_age_days: age.days}", "{email: mail}", 15, "unknown key"),
        ("timeout_ms: 250", "timeout_ms: 60000", 16, "between 50 and 5000"),
        ("  other:", "  mine:", 17, "duplicate key"),
        ("  other:", "  Other:", 17, "a source's name"),
        ("sources:", "source:", 1, 'did you mean "sources"'),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, old: str, new: str, line: int, message: str) -> None:
    assert old in SAMPLE
    with pytest.raises(PolicyError) as caught:
        load(tmp_path, SAMPLE.replace(old, new, 1))
    assert message in str(caught.value)
    assert caught.value.line == line


@pytest.mark.parametrize(
    "env, message",
    [
        ({"MINE_SECRET": "short"}, "at least 16 bytes"),
        ({"OTHER_SECRET": "whsec_" + base64.b64encode(b"w" * 23).decode()}, "at least 24 bytes"),
        ({"OTHER_SECRET": "whsec_***"}, "whsec_ followed by base64"),
        ({"MINE_SECRET": "w" * 24}, 'must not hold the same secret as source "mine"'),
        ({"MINE_OLD": "w" * 24}, 'must not hold the same secret as source "mine"'),
        ({"MINE_KEY": "a b"}, "printable ASCII"),
    ],
)
def test_a_secret_that_is_weak_or_shared_is_refused_and_not_shown(
    tmp_path: Path, env: dict[str, str], message: str
) -> None:
    with pytest.raises(PolicyError, match=message) as caught:
        load(tmp_path, SAMPLE, SAMPLE_ENV | env)
    for value in env.values():
        assert value not in caught.value.explain().replace("MINE_", "")


def test_a_changed_file_is_in_force_within_a_second_and_a_bad_one_never(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, clock = tmp_path / FILE_NAME, [0.0]

    def write(text: str) -> None:
        # Beside and over it, as editors and `kubectl` do; the time of two quick writes may be the same.
        (tmp_path / "next").write_text(text)
        os.replace(tmp_path / "next", path)

    write(SAMPLE)
    file = SourcesFile(path, SAMPLE_ENV, now=lambda: clock[0])
    first = file.current()
    write(SAMPLE.replace("burst: 5", "burst: 6"))
    assert file.current() is first, "not looked at on every request"
    clock[0] = 1.0
    changed = file.current().find("mine")
    assert changed is not None and changed.rate.burst == 6
    for bad in (SAMPLE.replace("burst: 6", "burst: -1").replace("burst: 5", "burst: -1"), None):
        write(bad) if bad else path.unlink()
        clock[0] += 1.0
        with caplog.at_level(logging.ERROR):
            assert file.current().find("mine") == changed
        assert file.error is not None and "the last good file stays in force" in caplog.text
    write(SAMPLE)
    clock[0] += 1.0
    assert file.current().find("mine") is not None and file.error is None


def test_a_rotation_is_two_lines_in_the_file(tmp_path: Path) -> None:
    env = {"MINE_SECRET": "n" * 16, "MINE_OLD": "o" * 16}
    new = load(tmp_path, SAMPLE, env).find("mine")
    old = load(tmp_path, SAMPLE, {"MINE_SECRET": "o" * 16}).find("mine")
    assert new is not None and old is not None
    delivery, end = old.signing.sign(b"{}", NOW, ""), datetime(2026, 12, 31, 12, tzinfo=UTC)
    assert new.signing.verify(delivery, b"{}", end - timedelta(seconds=1)) == Verified()
    assert new.signing.verify(delivery, b"{}", end) == Unverified("mismatch")
    assert new.signing.verify(new.signing.sign(b"{}", NOW, ""), b"{}", end) == Verified()
