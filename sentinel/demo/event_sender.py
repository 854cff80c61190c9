"""The demo's sender of events: started once somebody is to be sent events, by a webhook or by a setting."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping

import psycopg

from sentinel.demo.processes import Processes

_LOOK_SECONDS = 3.0
SETTINGS = ("SENTINEL_EXPORT_SLACK_WEBHOOK_URL", "SENTINEL_EXPORT_MAIL_TO", "SENTINEL_EXPORT_DECISION_LOG_URL")
HAS_WEBHOOK = "select exists (select from sentinel.event_endpoints where disabled_at is null and kind = 'webhook')"


class DemoSender:
    """Looks now and then whether there is a receiver, until there is one."""

    def __init__(self, processes: Processes, env: Mapping[str, str], database_url: str) -> None:
        self._processes, self._env, self._database_url = processes, env, database_url
        self._is_started, self._due = False, 0.0

    def start_if_wanted(self) -> None:
        """Called often; raises `DemoStopped` when the processes are to end."""
        if self._is_started or time.monotonic() < self._due:
            return
        self._due = time.monotonic() + _LOOK_SECONDS
        if any(os.environ.get(name) for name in SETTINGS) or self._has_webhook():
            self._processes.start("export", [sys.executable, "-m", "sentinel.cli.main", "export"], self._env)
            self._is_started = True

    def _has_webhook(self) -> bool:
        try:
            with psycopg.connect(self._database_url, connect_timeout=2) as connection:
                return connection.execute(HAS_WEBHOOK).fetchone() == (True,)
        except psycopg.Error:
            return False
