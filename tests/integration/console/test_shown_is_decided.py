"""G13: a person decides exactly what was shown: its digest comes back with the vote and is checked, on every way there is."""

from __future__ import annotations

import itertools
import json
import uuid
from typing import Any

import pytest
from click.testing import CliRunner

from sentinel.cli import approvals as cli

VERDICTS = ("approve", "reject", "handled")
FENCE = "when shown_digest is distinct from a.digest then 'changed'"

_names = (f"person{number}" for number in itertools.count())


class Console:
    """A browser: an approval as its operator reads it, and the operator's vote."""

    def __init__(self, fixtures: Any) -> None:
        self.person = fixtures.person(next(_names))

    def shown(self, approval_id: uuid.UUID) -> str:
        return str(self.person.get(f"/ops/api/approvals/{approval_id}").json["digest"])

    def vote(self, approval_id: uuid.UUID, verdict: str, digest: str) -> bool:
        """Whether it was taken; a refusal must be the conflict that says to look again."""
        more = {"reference": "ticket 7"} if verdict == "handled" else {}
        answer = self.person.post(
            f"/ops/api/approvals/{approval_id}/{verdict}", {"reason": "looked", "digest": digest, **more}
        )
        assert answer.status_code == 200 or (answer.status_code, "look at it again" in answer.json["detail"]) == (
            409,
            True,
        )
        return bool(answer.status_code == 200)


class CommandLine:
    """`sentinel approvals`: the same on a terminal."""

    def __init__(self, fixtures: Any) -> None:
        self.url, self.email = fixtures.url, fixtures.operator(next(_names)).email

    def run(self, *arguments: str) -> Any:
        return CliRunner().invoke(cli.group, list(arguments), env={"SENTINEL_DATABASE_URL": self.url})

    def shown(self, approval_id: uuid.UUID) -> str:
        listed = json.loads(self.run("list", "--json").stdout)
        return str(next(one["digest"] for one in listed if one["approval_id"] == str(approval_id)))

    def vote(self, approval_id: uuid.UUID, verdict: str, digest: str) -> bool:
        """Whether it was taken; a refusal must be one line that says to look again."""
        more = ("--reference", "ticket 7") if verdict == "handled" else ()
        asked = (verdict, str(approval_id), "--as", self.email, "--reason", "looked", "--digest", digest, *more)
        done = self.run(*asked)
        assert done.exit_code == 0 or (done.exit_code, "look at it again" in done.stderr) == (1, True), done.output
        return bool(done.exit_code == 0)


WAYS = {"console": Console, "command line": CommandLine}


def other_digests(fixtures: Any, way: Any, approval_id: uuid.UUID) -> list[str]:
    """What somebody could send who saw something else: another approval, a slip of the hand, the same a moment ago."""
    seen = way.shown(approval_id)
    other = way.shown(fixtures.approval("300.00"))
    flipped = seen[:-1] + ("0" if seen[-1] != "0" else "1")
    return [other, flipped, seen.upper(), seen.removeprefix("sha256:"), "sha256:" + "0" * 64]


def taken_unseen(fixtures: Any, make_way: Any, verdict: str) -> list[str]:
    """Digests of something else under which a vote was taken all the same; the checker of this file."""
    way, found = make_way(fixtures), []
    approval_id = fixtures.approval("200.00")
    others = other_digests(fixtures, way, approval_id)
    print(f"N={len(others)} other digests")
    for digest in others:
        if way.vote(approval_id, verdict, digest):
            found.append(digest)
            approval_id = fixtures.approval("200.00")
    if not found:
        assert fixtures.sql("select count(*) from sentinel.approval_votes where approval_id = %s", approval_id) == [
            (0,)
        ]
        assert fixtures.approval_status(approval_id) == "pending"
        assert way.vote(approval_id, verdict, way.shown(approval_id)), "what was shown is taken"
    return found


@pytest.mark.parametrize("verdict", VERDICTS)
@pytest.mark.parametrize("way", WAYS)
def test_a_vote_about_something_else_than_was_shown_is_refused(fixtures: Any, way: str, verdict: str) -> None:
    assert taken_unseen(fixtures, WAYS[way], verdict) == []


@pytest.mark.parametrize("way", WAYS)
def test_what_changed_since_it_was_shown_is_refused(fixtures: Any, way: str) -> None:
    """An approval's digest is its operation's, and neither is ever rewritten: so somebody with a hand in the database."""
    hand, approval_id = WAYS[way](fixtures), fixtures.approval("200.00")
    seen = hand.shown(approval_id)
    fixtures.sql("update sentinel.approvals set amount_minor = 90000, digest = 'sha256:' || repeat('9', 64)")
    assert [verdict for verdict in VERDICTS if hand.vote(approval_id, verdict, seen)] == []
    assert fixtures.approval_status(approval_id) == "pending"


def test_the_command_line_tells_the_digest_it_decided_on_and_binds_the_vote_to_it(fixtures: Any) -> None:
    hand, first, second = CommandLine(fixtures), fixtures.approval("200.00"), fixtures.approval("200.00")
    seen = hand.shown(first)
    spoken = ("--as", hand.email, "--reason", "looked")
    done = hand.run("approve", str(first), *spoken, "--digest", seen)
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (0, f"Digest: {seen}")
    seen = hand.shown(second)
    assert json.loads(hand.run("reject", str(second), *spoken, "--json").stdout)["digest"] == seen


def test_the_command_line_without_a_digest_decides_on_what_it_read_itself(
    fixtures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand, approval_id = CommandLine(fixtures), fixtures.approval("200.00")
    read = cli.known_approval

    def read_and_changed(*which: Any) -> Any:
        row = read(*which)
        fixtures.sql("update sentinel.approvals set digest = 'sha256:' || repeat('9', 64)")
        return row

    monkeypatch.setattr(cli, "known_approval", read_and_changed)
    done = hand.run("approve", str(approval_id), "--as", hand.email, "--reason", "looked")
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
    assert "look at it again" in done.stderr
    assert fixtures.approval_status(approval_id) == "pending"


@pytest.mark.parametrize("verdict", VERDICTS)
def test_nothing_is_decided_unseen_over_http_and_the_document_says_so(fixtures: Any, verdict: str) -> None:
    approval_id, person = fixtures.approval("200.00"), fixtures.person(next(_names))
    told = fixtures.app().test_client().get("/openapi.json").json["components"]["schemas"]
    assert all("digest" in told[name]["required"] for name in ("Vote", "Handled"))
    body = {"reason": "x"} | ({"reference": "ticket 7"} if verdict == "handled" else {})
    for unseen in ({}, {"digest": None}, {"digest": ""}):
        answer = person.post(f"/ops/api/approvals/{approval_id}/{verdict}", {**body, **unseen})
        assert (answer.status_code, list(answer.json["errors"])) == (400, ["digest"])
    assert fixtures.approval_status(approval_id) == "pending"


@pytest.mark.parametrize("way", WAYS)
def test_mutant_that_does_not_compare_digests_takes_every_vote_and_is_caught(fixtures: Any, way: str) -> None:
    ((text,),) = fixtures.sql("select pg_get_functiondef('sentinel.resolve_approval'::regproc)")
    assert FENCE in text
    fixtures.sql("set role sentinel_owner; " + text.replace(FENCE, ""))
    assert len(taken_unseen(fixtures, WAYS[way], "approve")) == 5
