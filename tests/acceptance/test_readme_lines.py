"""The shell lines of the README and of the deployment's check do what is said of them, against a demo."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from sentinel.demo.orders import DemoOrderSource, curl_line
from tests.acceptance.demos import Demo

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (shutil.which("curl") and shutil.which("openssl")), reason="needs curl and openssl"),
]
REPO = Path(__file__).resolve().parents[2]
README = (REPO / "README.md").read_text()


def printed(variable: str, value: str, *changes: tuple[str, str]) -> str:
    """What the README's lines that begin with this variable print, with its value."""
    (lines,) = re.findall(rf"```sh\n{variable}=…[^\n]*\n(.*?)```", README, re.DOTALL)
    for shown, here in changes:
        assert shown in lines
        lines = lines.replace(shown, here)
    command = ["sh", "-c", f"{variable}='{value}'\n{lines}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=True)
    return done.stdout.replace("\r\n", "\n")


def test_the_readmes_question_is_answered(demo: Demo) -> None:
    answer = json.loads(printed("KEY", demo.told["agent_api_key"], ("http://127.0.0.1:7860", demo.authority)))
    assert (answer["decision"], answer["status"]) == ("ALLOW", "allowed"), answer


def test_the_deployments_check_is_answered_and_starts_nothing(demo: Demo) -> None:
    (question,) = re.findall(
        r"^curl [^\n]*/action/guard .*?\}'$", (REPO / "docs" / "deployment.md").read_text(), re.DOTALL | re.MULTILINE
    )
    line = question.replace("http://127.0.0.1:7860", demo.authority).replace("$KEY", demo.told["agent_api_key"])
    for _ in range(2):
        done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=150, check=True)
        answer = json.loads(done.stdout)
        # Asked again, what had been started would be `already_started`.
        assert (answer["decision"], answer["status"], answer["reason_code"]) == (
            "ALLOW",
            "allowed",
            "within_policy_limit",
        ), answer


def test_the_readmes_order_is_taken_once_and_under_its_id_no_other(demo: Demo) -> None:
    """Also by whoever first pasted the line that the demo prints."""
    line = curl_line(DemoOrderSource(**demo.told["order_source"]))
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=150, check=True)
    assert int(done.stdout.split()[1]) == 200, done.stdout
    here = (("http://127.0.0.1:7862", demo.orders),)

    def post(*changes: tuple[str, str]) -> tuple[int, str, Any]:
        head, _, body = printed("SECRET", demo.told["order_source"]["secret"], *here, *changes).partition("\n\n")
        return int(head.split()[1]), head.lower(), json.loads(body)

    first, repeated, another = post(), post(), post(("49.90", "49.91"))
    # It says nothing of the account: medium, for a person.
    assert (first[0], first[2]["lane"]) == (202, "medium"), first
    assert "x-sentinel-idempotent-replay: true" in repeated[1] and "replay" not in first[1]
    assert (repeated[0], repeated[2]) == (first[0], first[2])
    assert another[0] == 422
