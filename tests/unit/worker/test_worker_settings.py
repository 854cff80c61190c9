"""The worker's settings and failpoints: all that is wrong is said at once, and nothing is armed without permission."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from sentinel.client import Client
from sentinel.platform.settings import UnsafeConfiguration
from worker.failpoints import BadFailpoint, Failpoint, FailpointHit, Failpoints
from worker.refunds.settings import WorkerSettings, read_settings


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Nothing of ours set but the key."""
    for name in list(os.environ):
        if name.startswith(("SENTINEL_", "WORKER_", "HALTSTATE_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("SENTINEL_REFUND_AGENT_API_KEY", "key")
    return monkeypatch


def test_everything_wrong_is_said_at_once(clean_environment: pytest.MonkeyPatch) -> None:
    clean_environment.delenv("SENTINEL_REFUND_AGENT_API_KEY")
    for name, value in {
        "WORKER_BATCH": "many",
        "WORKER_LEASE_SECONDS": "5",
        "SENTINEL_URL": "nowhere",
        "SENTINEL_TENANT_ID": "x",
    }.items():
        clean_environment.setenv(name, value)
    with pytest.raises(UnsafeConfiguration) as bad:
        read_settings()
    for name in (
        "WORKER_BATCH",
        "WORKER_LEASE_SECONDS",
        "SENTINEL_URL",
        "SENTINEL_TENANT_ID",
        "SENTINEL_REFUND_AGENT_API_KEY",
    ):
        assert name in str(bad.value)
    assert "\n" not in str(bad.value)


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:78600", "http://127.0.0.1:786O", "http://127.0.0.1:7860?x=1", "http://a..b:7860", "http://.b:7860",
        "http://127.0.0.1:7860/ü", "http://127.0.0.1:7860/a b", "http://name:word@127.0.0.1:7860",
    ],
)  # fmt: skip
def test_a_mistyped_address_of_the_authority_is_refused(clean_environment: pytest.MonkeyPatch, url: str) -> None:
    clean_environment.setenv("SENTINEL_URL", url)
    with pytest.raises(UnsafeConfiguration, match="SENTINEL_URL must look like http://host:port"):
        read_settings()


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:7860 ", "http://[::1]:7860\n", "https://authority.example/prefix/", "http://sentinel_authority:7860"]
)  # fmt: skip
def test_what_is_taken_for_the_authoritys_address_can_be_asked(clean_environment: pytest.MonkeyPatch, url: str) -> None:
    clean_environment.setenv("SENTINEL_URL", url)
    taken = read_settings().authority_url
    assert taken == url.strip()
    Client(taken, "key").close()


def test_what_depends_on_a_malformed_setting_is_not_judged(clean_environment: pytest.MonkeyPatch) -> None:
    for name, value in {"WORKER_LEASE_SECONDS": "5", "WORKER_HEARTBEAT_SECONDS": "x", "WORKER_LANES": "0"}.items():
        clean_environment.setenv(name, value)
    with pytest.raises(UnsafeConfiguration) as bad:
        read_settings()
    assert str(bad.value) == (
        "settings: WORKER_HEARTBEAT_SECONDS: Not a valid number; "
        "WORKER_LANES: Must be greater than or equal to 1 and less than or equal to 1000000"
    )


def test_a_lease_shorter_than_two_calls_and_a_heartbeat_is_refused(clean_environment: pytest.MonkeyPatch) -> None:
    clean_environment.setenv("WORKER_LEASE_SECONDS", "19.9")
    with pytest.raises(UnsafeConfiguration, match="at least 2 × WORKER_GUARD_TIMEOUT_SECONDS"):
        read_settings()
    clean_environment.setenv("WORKER_LEASE_SECONDS", "20")
    assert read_settings().lease_seconds == 20


@pytest.mark.parametrize(
    ("seconds", "said"),
    [("0.9", "WORKER_BACKOFF_MAX_SECONDS must be at least WORKER_BACKOFF_SECONDS"), ("86400", "less than 86400")],
)
def test_a_longest_pause_out_of_its_bounds_is_refused_with_the_one_it_breaks(
    clean_environment: pytest.MonkeyPatch, seconds: str, said: str
) -> None:
    """The finding: of a pause of a day or more it said that it must not be less than the first one."""
    clean_environment.setenv("WORKER_BACKOFF_MAX_SECONDS", seconds)
    with pytest.raises(UnsafeConfiguration, match=said):
        read_settings()


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        ("9.9", "must be at least WORKER_GUARD_TIMEOUT_SECONDS . WORKER_SETTLEMENT_TIMEOUT_SECONDS = 10"),
        ("3001", "less than or equal to 3000"),
    ],
)
def test_a_time_to_act_is_as_long_as_its_calls_and_no_longer_than_the_authority_takes(
    clean_environment: pytest.MonkeyPatch, seconds: str, said: str
) -> None:
    clean_environment.setenv("WORKER_ACT_SECONDS", seconds)
    with pytest.raises(UnsafeConfiguration, match=f"WORKER_ACT_SECONDS:? .*{said}"):
        read_settings()


def test_the_key_comes_from_either_name_or_a_file(clean_environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("from-file\n")
    assert read_settings(api_key_file=file).api_key == "from-file"
    clean_environment.delenv("SENTINEL_REFUND_AGENT_API_KEY")
    clean_environment.setenv("HALTSTATE_REFUND_AGENT_API_KEY", "old-name")
    assert read_settings().api_key == "old-name"
    with pytest.raises(UnsafeConfiguration, match="cannot be read"):
        read_settings(api_key_file=tmp_path / "none")


def test_the_ledgers_database_defaults_to_the_authoritys(clean_environment: pytest.MonkeyPatch) -> None:
    assert read_settings().database_url is None
    clean_environment.setenv("SENTINEL_DATABASE_URL", "postgresql:///a")
    assert read_settings().database_url == "postgresql:///a"
    clean_environment.setenv("WORKER_DATABASE_URL", "postgresql:///b")
    assert read_settings().database_url == "postgresql:///b"


def test_every_setting_says_its_variable_and_its_meaning() -> None:
    for field in dataclasses.fields(WorkerSettings):
        assert field.metadata["env"].startswith(("WORKER_", "SENTINEL_", "CONFIRM_", "SMTP_"))
        assert field.metadata["help"]


def test_a_failpoint_fires_at_its_place_at_its_time_and_only_with_permission() -> None:
    armed = Failpoints.parse("after_start:raise:2", allowed=True)
    armed.hit(Failpoint.AFTER_START)
    armed.hit(Failpoint.BEFORE_START)
    with pytest.raises(FailpointHit):
        armed.hit(Failpoint.AFTER_START)
    armed.hit(Failpoint.AFTER_START)
    with pytest.raises(BadFailpoint, match="SENTINEL_ALLOW_FAILPOINTS"):
        Failpoints.parse("after_start:raise", allowed=False)
    Failpoints.parse(None, allowed=False).hit(Failpoint.AFTER_START)


@pytest.mark.parametrize(
    "text", ["nowhere:kill", "after_start", "after_start:explode", "after_start:kill:0", "after_start:kill:x"]
)
def test_a_failpoint_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(BadFailpoint):
        Failpoints.parse(text, allowed=True)
