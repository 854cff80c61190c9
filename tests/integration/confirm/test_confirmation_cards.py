"""Cards in the database: one answer per card and for ever, only the customer's, only in time, only to what was shown."""

from __future__ import annotations

import itertools
import uuid
from typing import Any

import psycopg
import pytest
from psycopg import errors as pg

from sentinel.store.database import CONSOLE, PUBLIC, WORKER, with_role
from tests.support.confirm_fixtures import CLAIM, WAIT, Cards
from tests.support.harness import at_once
from worker.notify import Delivered, Failed, LogNotifier, Message, Messenger
from worker.refunds.confirmations import CardStatus
from worker.refunds.ledger import LedgerUnavailable

CALL = "select refunds.answer_confirmation(%s, %s, %s, %s)"
STATUSES = ("pending", "confirmed", "declined", "expired", "superseded")


def answer(cards: Cards, name: str, given: str = "confirm", **over: Any) -> str:
    """What became of an answer given as the console."""
    card = cards.confirmations.latest([name])[name]
    values = {"tenant": cards.tenant_id, "card": card.confirmation_id, "digest": card.digest, **over}
    with psycopg.connect(with_role(cards.url, CONSOLE), autocommit=True) as console:
        row = console.execute(CALL, [values["tenant"], values["card"], values["digest"], given]).fetchone()
    assert row is not None
    return str(row[0])


@pytest.mark.parametrize(("given", "became"), [("confirm", "confirmed"), ("decline", "declined")])
def test_an_answer_counts_once_and_wakes_its_row(cards: Cards, given: str, became: str) -> None:
    asked = cards.waiting("a")
    cards.waiting("other")
    assert not cards.is_due("a")
    assert answer(cards, "a", given) == became
    assert cards.is_due("a")
    assert not cards.is_due("other")
    card = cards.confirmations.latest(["a"])["a"]
    assert card.says(CardStatus(became), cards.confirmations.digest_of(asked))
    assert cards.one("select answered_at from refunds.confirmations where ledger_entry_id = 'a'") is not None
    assert [answer(cards, "a", again) for again in ("confirm", "decline")] == [f"already_{became}"] * 2
    assert cards.status("a") == became


def winners_of(cards: Cards) -> tuple[list[Any], int]:
    """(answers that won, how often an answer was recorded) of 32 people who tap at once."""
    cards.waiting("race")
    card = cards.confirmations.latest(["race"])["race"]
    cards.admin.execute("create table refunds.recorded (status text)")
    cards.admin.execute(
        "create function refunds.count_answer() returns trigger language plpgsql security definer as"
        " $$ begin insert into refunds.recorded values (new.status); return null; end $$")  # fmt: skip
    cards.admin.execute(
        "create trigger count_answer after update of status on refunds.confirmations for each row execute function refunds.count_answer()"
    )

    def tap(given: str) -> str:
        with psycopg.connect(with_role(cards.url, CONSOLE), autocommit=True) as console:
            row = console.execute(CALL, [cards.tenant_id, card.confirmation_id, card.digest, given]).fetchone()
        assert row is not None
        return str(row[0])

    answers = at_once([lambda given=given: tap(given) for given in ("confirm", "decline") * 16])
    assert all(isinstance(one, str) for one in answers), answers
    return [one for one in answers if one in ("confirmed", "declined")], cards.one(
        "select count(*) from refunds.recorded"
    )


@pytest.mark.usefixtures("patient")
def test_of_32_answers_at_once_exactly_one_wins(cards: Cards) -> None:
    won, recorded = winners_of(cards)
    assert (len(won), recorded) == (1, 1)
    assert cards.status("race") == won[0]


def test_without_its_conditions_an_answer_would_be_recorded_more_than_once(cards: Cards) -> None:
    """The mutant: neither the UPDATE nor the trigger looks at the status."""
    run = cards.admin.execute
    source = cards.one("select pg_get_functiondef('refunds.answer_confirmation'::regproc)")
    fence = "and c.status = 'pending'"
    assert source.count(fence) == 1, "bring this mutant up to date"
    run(source.replace(fence, "").encode())
    run("alter table refunds.confirmations disable trigger check_confirmation")
    won, recorded = winners_of(cards)
    assert len(won) > 1
    assert recorded > 1


def test_an_expired_card_cannot_be_answered_and_stays_expired(cards: Cards) -> None:
    cards.waiting("late")
    before = cards.confirmations.latest(["late"])["late"]
    assert before.status == "pending"
    cards.let_expire("late")
    assert answer(cards, "late", card=before.confirmation_id) == "expired"
    assert cards.confirmations.latest(["late"])["late"].status == "expired"
    assert cards.status("late") == "expired"
    cards.confirmations.open([cards.ask("late")])
    assert cards.confirmations.latest(["late"])["late"].status == "expired", "nobody is asked the same question again"


def test_an_answer_to_something_else_than_was_shown_is_not_recorded(cards: Cards) -> None:
    cards.waiting("a")
    assert answer(cards, "a", digest="sha256:" + "0" * 64) == "changed"
    assert answer(cards, "a", digest=None) == "changed"
    assert answer(cards, "a", card=uuid.uuid4()) == "unknown"
    assert answer(cards, "a", tenant=uuid.uuid4()) == "unknown"
    with pytest.raises(pg.InvalidParameterValue):
        answer(cards, "a", "maybe")
    assert cards.status("a") == "pending"
    assert not cards.is_due("a")


def test_another_digest_supersedes_a_pending_card(cards: Cards) -> None:
    first = cards.waiting("a")
    old = cards.confirmations.latest(["a"])["a"]
    changed = cards.ask("a", channel="public")
    assert cards.confirmations.digest_of(changed) != cards.confirmations.digest_of(first)
    cards.confirmations.open([changed])
    assert answer(cards, "a", card=old.confirmation_id, digest=old.digest) == "superseded"
    new = cards.confirmations.latest(["a"])["a"]
    assert new.status == "pending"
    assert new.confirmation_id != old.confirmation_id
    cards.confirmations.open([first])
    assert cards.confirmations.latest(["a"])["a"].says(CardStatus.PENDING, old.digest), (
        "what is asked again is open again"
    )


@pytest.mark.usefixtures("patient")
def test_opening_again_and_at_once_opens_one_card(cards: Cards) -> None:
    cards.waiting("a")
    asks = [cards.ask("a")]
    assert at_once([lambda: cards.confirmations.open(asks) for _ in range(8)]) == [None] * 8
    assert cards.one("select count(*) from refunds.confirmations") == 1
    answer(cards, "a")
    cards.confirmations.open(asks)
    assert cards.one("select count(*) from refunds.confirmations") == 1


def test_a_card_says_what_its_row_says_whatever_is_asked(cards: Cards) -> None:
    asked = cards.waiting("a", value=980)
    cards.admin.execute("update refunds.confirmations set status = 'superseded'")
    lie = type(asked)(**{**{name: getattr(asked, name) for name in asked.__dataclass_fields__}, "amount_minor": 1})
    cards.confirmations.open([lie])
    assert cards.all("select amount_minor from refunds.confirmations where status = 'pending'") == [(980,)]


def test_the_card_of_a_row_that_ended_is_void(cards: Cards) -> None:
    cards.waiting("a")
    cards.admin.execute("alter table refunds.ledger_entries disable trigger check_transition")
    cards.admin.execute("update refunds.ledger_entries set status = 'DENIED', waiting_for = null")
    assert answer(cards, "a") == "superseded"
    assert cards.status("a") == "pending"


def admitted(cards: Cards) -> set[tuple[str, str]]:
    """Which changes of status the table admits, tried as its owner would."""
    found = set()
    for number, (start, end) in enumerate(itertools.product(STATUSES, STATUSES)):
        name = f"s{number}"
        cards.waiting(name)
        run = cards.admin.execute
        moment = "clock_timestamp() - interval '2 seconds'"
        stamp = {state: moment if state in ("confirmed", "declined") else "null" for state in STATUSES}
        if start == "expired" or end == "expired":
            cards.let_expire(name)
            stamp = {
                state: "expires_at - interval '1 second'" if value != "null" else value
                for state, value in stamp.items()
            }
        if start != "pending":
            run(
                f"update refunds.confirmations set status = '{start}', answered_at = {stamp[start]} where ledger_entry_id = '{name}'".encode()
            )
        try:
            run(
                f"update refunds.confirmations set status = '{end}', answered_at = {stamp[end]} where ledger_entry_id = '{name}'".encode()
            )
        except pg.CheckViolation:
            continue
        if start != end:
            found.add((start, end))
    return found


def test_only_pending_cards_change_their_status(cards: Cards) -> None:
    assert admitted(cards) == {("pending", end) for end in STATUSES if end != "pending"}


def test_a_card_does_not_expire_early_nor_change_its_terms(cards: Cards) -> None:
    cards.waiting("a")
    for change in ("status = 'expired'", "amount_minor = 1", "expires_at = expires_at + interval '1 day'", "digest = 'sha256:' || repeat('0', 64)",
                   "contact = 'x'", "status = 'confirmed'"):  # fmt: skip
        with pytest.raises(pg.CheckViolation):
            cards.admin.execute(f"update refunds.confirmations set {change}".encode())
    for removal in ("delete from refunds.confirmations", "truncate refunds.confirmations"):
        with pytest.raises(pg.InsufficientPrivilege):
            cards.admin.execute(removal.encode())


@pytest.mark.parametrize(
    ("role", "statement"),
    [
        (WORKER, "select refunds.answer_confirmation(gen_random_uuid(), gen_random_uuid(), '', 'confirm')"),
        (WORKER, "update refunds.confirmations set status = 'confirmed', answered_at = clock_timestamp()"),
        (WORKER, "insert into refunds.confirmations (ledger_entry_id) values ('a')"),
        (WORKER, "delete from refunds.confirmations"),
        (CONSOLE, "select contact from refunds.confirmations"),
        (CONSOLE, "select * from refunds.confirmations"),
        (CONSOLE, "update refunds.confirmations set status = 'confirmed'"),
        (CONSOLE, "select refunds.open_confirmations(gen_random_uuid(), '[]', 60)"),
        (CONSOLE, "select refunds.latest_confirmations(gen_random_uuid(), '{}')"),
        (PUBLIC, "select contact from refunds.confirmations"),
        (PUBLIC, "update refunds.confirmations set status = 'confirmed'"),
        (PUBLIC, "select refunds.open_confirmations(gen_random_uuid(), '[]', 60)"),
        ("sentinel_authority", "select status from refunds.confirmations"),
        ("board_reader", "select status from refunds.confirmations"),
        ("board_reader", "select refunds.answer_confirmation(gen_random_uuid(), gen_random_uuid(), '', 'confirm')"),
    ],
)  # fmt: skip
def test_no_program_can_do_the_others_part(cards: Cards, role: str, statement: str) -> None:
    with psycopg.connect(with_role(cards.url, role), autocommit=True) as connection:
        with pytest.raises(pg.InsufficientPrivilege):
            connection.execute(statement.encode())


class Broken:
    """A notifier that hands nothing over."""

    name, longest_seconds = "broken", 0.0

    def deliver(self, message: Message) -> Delivered | Failed:
        return Failed("smtp: 451")


def test_a_run_sends_every_link_that_is_due_and_ends_where_none_goes_out(cards: Cards) -> None:
    """The finding: a single run sent twenty, and ended well as if all customers had been asked."""
    for number in range(45):
        cards.waiting(f"r{number}")
    assert Messenger(cards.confirmations, Broken()).deliver_all() == 0
    assert cards.one("select sum(delivery_attempts) from refunds.confirmations") == 20, "one round of them"
    cards.admin.execute("update refunds.confirmations set next_delivery_at = clock_timestamp()")
    assert Messenger(cards.confirmations, LogNotifier()).deliver_all() == 45
    assert cards.one("select count(*) from refunds.confirmations where delivered_at is null") == 0


def test_links_go_out_only_once_the_row_waits(cards: Cards) -> None:
    cards.waiting("waits", contact="someone@shop.example", language="de")
    cards.add("not_yet")
    cards.confirmations.open([cards.ask("not_yet")])
    taken = cards.confirmations.undelivered(10)
    assert [(card.ledger_entry_id, card.contact, card.language) for card in taken] == [
        ("waits", "someone@shop.example", "de")
    ]
    assert "someone" not in repr(taken)
    assert cards.confirmations.undelivered(10) == [], "it is in one worker's hands"
    due = "select extract(epoch from next_delivery_at - clock_timestamp())::float from refunds.confirmations where delivery_attempts = 1"
    assert 50 < cards.one(due) <= 60
    cards.admin.execute("update refunds.confirmations set next_delivery_at = clock_timestamp(), delivery_attempts = 0")
    cards.confirmations.undelivered(10, 9.0)
    assert 140 < cards.one(due) <= 150, "for as long as sending ten of them may take"
    cards.confirmations.postpone(taken[0].confirmation_id, "smtp: timeout", 0.0)
    assert [card.delivery_attempts for card in cards.confirmations.undelivered(10)] == [2]
    cards.confirmations.mark_delivered(taken[0].confirmation_id)
    assert cards.undelivered_now() == []
    assert cards.confirmations.latest(["waits"])["waits"].delivered_at is not None
    assert cards.one("select last_delivery_error from refunds.confirmations where ledger_entry_id = 'waits'") is None


def test_a_final_failure_is_kept_and_not_tried_again(cards: Cards) -> None:
    cards.waiting("a")
    (card,) = cards.confirmations.undelivered(10)
    cards.confirmations.postpone(card.confirmation_id, "smtp: no address", None)
    assert cards.one("select next_delivery_at = 'infinity' from refunds.confirmations")
    assert cards.one("select last_delivery_error from refunds.confirmations") == "smtp: no address"


def test_a_row_that_was_held_when_its_customer_answered_is_woken_later(cards: Cards) -> None:
    cards.waiting("held")
    cards.waiting("asleep")
    cards.admin.execute(CLAIM, ["held"])
    assert answer(cards, "held") == "confirmed"
    cards.admin.execute(WAIT, ["held"])
    assert not cards.is_due("held")
    assert cards.confirmations.wake_answered() == 1
    assert cards.is_due("held")
    assert not cards.is_due("asleep")


def test_tenants_do_not_see_each_others_cards(cards: Cards) -> None:
    cards.waiting("a")
    strangers = cards.of(uuid.uuid4())
    assert strangers.latest(["a"]) == {}
    assert strangers.undelivered(10) == []
    strangers.open([cards.ask("a")])
    assert cards.one("select count(*) from refunds.confirmations") == 1


def test_a_database_that_is_gone_is_said_so(cards: Cards) -> None:
    from sentinel.store.database import Pool
    from worker.refunds.confirmations import Confirmations

    gone = Confirmations(
        Pool("host=127.0.0.1 port=1 connect_timeout=1", size=1), uuid.uuid4(), secrets=("x" * 32,), base_url="http://x"
    )
    with pytest.raises(LedgerUnavailable):
        gone.latest(["a"])


def test_what_is_executed_without_its_customers_answer_breaks_an_invariant(cards: Cards) -> None:
    from sentinel.platform.resources import invariants_sql
    from sentinel.store.invariants import run_invariants

    def broken() -> int:
        return next(
            v.violations
            for v in run_invariants(cards.admin, invariants_sql())
            if v.name == "executed_without_confirmation"
        )

    cards.add("done")
    run = cards.admin.execute
    run("set session_replication_role = replica")
    run("update refunds.ledger_entries set status = 'EXECUTED', budget_part = 'executed'")
    run("insert into refunds.executions (execution_id, ledger_entry_id, refund_id, amount_minor, currency, operation_id, start_id,"
        " start_event_id, claim_epoch) select gen_random_uuid(), ledger_entry_id, refund_id, amount_minor, currency,"
        " gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), 1 from refunds.ledger_entries")  # fmt: skip
    assert broken() == 0, "rows whose customers are not asked need no card"
    cards.admin.execute(
        "insert into refunds.confirmations (tenant_id, ledger_entry_id, refund_id, digest, channel, scenario, amount_minor, currency,"
        " expires_at) select tenant_id, ledger_entry_id, refund_id, 'sha256:' || repeat('0', 64), channel, scenario, amount_minor,"
        " currency, clock_timestamp() + interval '1 day' from refunds.ledger_entries")  # fmt: skip
    assert broken() == 1
