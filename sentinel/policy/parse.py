"""The format of a policy file: YAML nodes → `Policy`. Defines what may be written; conditions are compiled elsewhere.

Errors are collected section by section and rule by rule, so that one check names all of them; after an error
the returned policy is only good for finding more errors.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar
from zoneinfo import ZoneInfo, available_timezones

from sentinel.core.decision import Verdict, WindowKind
from sentinel.policy.conditions import ConditionError, normalised
from sentinel.policy.errors import SourcePosition, nearest
from sentinel.policy.model import (
    EVIDENCE,
    Breaker,
    DeclaredApprovalTerms,
    Fact,
    Limit,
    Once,
    Policy,
    Rule,
    rolling_bucket_seconds,
)
from sentinel.policy.parse_facts import NAME_FORM, read_amounts, read_facts, read_numbers, read_path
from sentinel.policy.source import Node, Scalar, Source, Table

RESERVED_REASONS = frozenset(
    {
        "approval_expired",
        "approval_rejected",
        "duplicate_resource",
        "engine_unavailable",
        "fact_missing",
        "halted",
        "looks_like_duplicate",
        "fact_not_vouched",
        "no_matching_policy",
        "once_key_changed",
        "velocity_halted",
        "awaiting_customer",
        "confirmation_expired",
        "contradiction",
        "customer_declined",
        "error_reported",
        "executed_elsewhere",
        "handled_by_person",
        "no_report",
        "not_executed",
        "question_refused",
        "second_administrator",
        "settlement_refused",
        "start_forgotten",
        "start_unconfirmed",
        "started_elsewhere",
    }
)
"""Reason codes that only the engine and the worker give: a policy that borrowed one would hide who refused, or say what
has not happened. Programs act on some of them: a refund denied as `handled_by_person` counts as paid by that person."""

RESERVED_LIMIT_IDS = ("duplicate_resource", "halted", "looks_like_duplicate", "velocity_halted")
"""What the database records among the ids of exhausted limits where a check of its own tightened a decision."""

_TOP = (
    "policy", "label", "version", "actions", "zone", "facts", "numbers", "rules", "once_per", "limits", "breakers", "approval",
)  # fmt: skip
_NEEDED = ("policy", "label", "version", "actions", "facts", "rules", "approval")
_POLICY_ID = re.compile(r"[a-z][a-z0-9-]{0,63}", re.ASCII)
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_LABEL = re.compile(r"[^\x00-\x1f\x7f]{1,120}")
_SENTENCE = re.compile(r"(?=.*\S)[^\x00-\x1f\x7f-\x9f\u2028\u2029]{1,200}")
_ACTION = re.compile(r"[A-Za-z0-9_:/@-]+(\.[A-Za-z0-9_:/@-]+)*(\.\*)?", re.ASCII)
_ZONE = re.compile(r"[A-Z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+){0,2}", re.ASCII)
_THING = re.compile(r"[a-z][a-z0-9_]{0,39}", re.ASCII)
_DURATION = re.compile(r"([1-9][0-9]{0,5})(s|m|h|d)", re.ASCII)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DAY = 86400
MAX_WINDOW = 400 * _DAY
MAX_EXPIRY = 30 * _DAY

_T = TypeVar("_T")


@dataclass
class ParsedPolicy:
    """A parsed file: the policy, and for messages the scalar of each condition and the places of sections and ids.

    `facts_are_sound` is False after an error in the top-level keys, the facts or the numbers: checking conditions would
    only give errors that follow from it.
    """

    policy: Policy
    conditions: dict[str, Scalar]
    sections: dict[str, SourcePosition]
    ids: dict[str, SourcePosition]
    facts_are_sound: bool


def parse_policy(source: Source, root: Node) -> ParsedPolicy:
    """Parse the file; errors are collected in `source.errors`. Raises `PolicyError` if nothing can be read."""
    top = source.table(root, "a policy file")
    with source.collecting():
        source.fields(root, "policy", known=_TOP, required=_NEEDED)
    facts: tuple[Fact, ...] = _section(source, top, "facts", read_facts, ())
    numbers: dict[str, dict[str, int]] = _section(source, top, "numbers", read_numbers, {})
    sound = not source.errors
    each = _Items({}, {})
    policy = Policy(
        policy_id=_section(source, top, "policy", _policy_id, ""),
        label=_section(source, top, "label", _label, ""),
        version=_section(source, top, "version", _version, ""),
        actions=_section(source, top, "actions", _actions, ()),
        zone=_section(source, top, "zone", _zone, "UTC"),
        facts=facts,
        numbers=numbers,
        rules=_section(source, top, "rules", lambda s, n: each.read(s, n, "rules", _rule), ()),
        limits=_section(source, top, "limits", lambda s, n: each.read(s, n, "limits", _limit), ()),
        approval=_section(source, top, "approval", _approval, DeclaredApprovalTerms(0, "", 0, {})),
        once_per=_section(source, top, "once_per", _once_per, None),
        breakers=_section(source, top, "breakers", lambda s, n: each.read(s, n, "breakers", _breaker), ()),
    )
    return ParsedPolicy(policy, each.conditions, top.keys, each.taken, sound)


def _section(source: Source, top: Table, name: str, take: Callable[[Source, Node], _T], fallback: _T) -> _T:
    """Read one top-level key; returns the fallback where it is absent or wrong (which is noted)."""
    if name in top.entries:
        with source.collecting():
            return take(source, top.entries[name])
    return fallback


def _policy_id(source: Source, node: Node) -> str:
    name = source.text(node, "policy", form=_POLICY_ID, means="an id of small letters, digits and dashes")
    if name == "none":
        raise source.error(node.place, 'policy: "none" is reserved for having no policy')
    return name


def _label(source: Source, node: Node) -> str:
    return source.text(node, "label", form=_LABEL, means="one line of up to 120 characters")


def _version(source: Source, node: Node) -> str:
    return source.text(node, "version", form=_VERSION, means="a version name")


def _actions(source: Source, node: Node) -> tuple[str, ...]:
    means = 'an action like refund.create, or a pattern like email.* (a "*" only at the end, after a dot)'
    names = [source.text(item, "actions", form=_ACTION, means=means) for item in source.listing(node, "actions")]
    for at, name in enumerate(names):
        if name in names[:at]:
            raise source.error(node.place, f'actions: "{name}" is listed twice')
    return tuple(names)


def _zone(source: Source, node: Node) -> str:
    name = source.text(node, "zone", form=_ZONE, means="a zone like UTC or Europe/Berlin")
    if name != "UTC" and "/" not in name:
        # PostgreSQL looks such a name up as an abbreviation first, and as one CET has no summer time: an hour off all
        # summer.
        raise source.error(node.place, f'zone: "{name}": write UTC or an area and a place, like Europe/Berlin')
    try:
        return ZoneInfo(name).key
    except (KeyError, ValueError, OSError) as error:
        hint = nearest(name, sorted(available_timezones()))
        raise source.error(node.place, f'zone: "{name}" is not a known time zone', hint) from error


def _once_per(source: Source, node: Node) -> Once:
    if isinstance(node, Scalar):
        raise source.error(
            node.place, "once_per: name the thing that happens once, and the param that identifies it", _once_hint(node)
        )
    table = source.table(node, "once_per")
    if len(table.entries) != 1:
        message = f"once_per: must name one thing, not {len(table.entries)}"
        raise source.error(table.place, message, "e.g. {refund: params.refund_id}")
    ((thing, named),) = table.entries.items()
    if not _THING.fullmatch(thing):
        hint = nearest(thing.lower(), ("refund", "order")) or "a name like refund or order"
        raise source.error(
            table.keys[thing], f'once_per: "{thing}" is not a name of small letters and underscores', hint
        )
    path = read_path(source, named, f"once_per: {thing}")
    if path[0] == EVIDENCE:
        raise source.error(named.place, f"once_per: {EVIDENCE} is not part of the operation", "use one of its params")
    return Once(thing, path)


def _once_hint(written: Scalar) -> str:
    """Return the form that names the thing, for a once-key that is written as a path alone."""
    thing = re.sub("_(id|ref|key)$", "", written.text.rpartition(".")[2].lower())
    return f"{{{thing if _THING.fullmatch(thing) else 'refund'}: {written.text[:80] or 'params.refund_id'}}}"


@dataclass
class _Items:
    """Reads rules, limits and breakers: items whose ids are unique over all three; an error in one item leaves the others readable."""

    taken: dict[str, SourcePosition]
    conditions: dict[str, Scalar]

    def read(self, source: Source, node: Node, what: str, take: Callable[[Source, Table, str], _T]) -> tuple[_T, ...]:
        found: list[_T] = []
        for item in source.listing(node, what):
            with source.collecting():
                table = source.table(item, f"an entry of {what}")
                name = self._id(source, table, what)
                when = table.entries.get("when")
                if isinstance(when, Scalar) and when.kind == "str" and when.text:
                    self.conditions[name] = when
                found.append(take(source.within(name, what.removesuffix("s")), table, name))
        return tuple(found)

    def _id(self, source: Source, table: Table, what: str) -> str:
        if "id" not in table.entries:
            raise source.error(table.place, f'an entry of {what}: "id" is missing')
        node = table.entries["id"]
        name = source.text(node, "id", form=NAME_FORM, means="an id of small letters, digits and underscores")
        if name in self.taken:
            hint = f"first on line {self.taken[name].line}"
            raise source.within(name, what.removesuffix("s")).error(node.place, f'duplicate id "{name}"', hint)
        self.taken[name] = node.place
        return name


def _rule(source: Source, table: Table, name: str) -> Rule:
    reason = "reason_from" if "reason_from" in table.entries else "reason"
    needed = ("id", "when", "then", reason, "says")
    known = ("id", "says", "when", "then", "reason", "reason_from", "approvable")
    entries = source.fields(table, "rule", known=known, required=needed).entries
    verdict = Verdict(source.one_of(entries["then"], "then", [v.value for v in Verdict]))
    when, approvable = _when(source, entries["when"]), _approvable(source, table, verdict)
    says = _says(source, entries["says"])
    if reason == "reason":
        return Rule(name, when, verdict, _reason(source, entries["reason"]), approvable=approvable, says=says)
    if "reason" in entries:
        raise source.error(table.keys["reason"], "reason and reason_from: use only one of them")
    if verdict is Verdict.ALLOW:
        raise source.error(
            table.keys["reason_from"],
            "reason_from: cannot be used with ALLOW, because the requester would choose the reason",
        )
    fact = source.text(entries["reason_from"], "reason_from")
    return Rule(name, when, verdict, f"unknown_{fact.replace('.', '_')}", fact, approvable, says)


def _approvable(source: Source, table: Table, verdict: Verdict) -> bool:
    if "approvable" not in table.entries:
        return True
    if verdict is not Verdict.APPROVAL_REQUIRED:
        raise source.error(table.keys["approvable"], "approvable is only for rules with then: APPROVAL_REQUIRED")
    return source.boolean(table.entries["approvable"], "approvable")


def _limit(source: Source, table: Table, name: str) -> Limit:
    required = ("id", "window", "per", "cap", "then", "reason", "says")
    entries = source.fields(table, "limit", known=(*required, "when"), required=required).entries
    if name in RESERVED_LIMIT_IDS:
        raise source.error(entries["id"].place, f'id: "{name}" is reserved for the engine')
    window, seconds, bucket = _window(source, entries["window"])
    strict = [Verdict.APPROVAL_REQUIRED.value, Verdict.DENY.value]
    return Limit(
        limit_id=name,
        window=window,
        window_seconds=seconds,
        bucket_seconds=bucket,
        per=tuple(source.text(item, "per") for item in source.listing(entries["per"], "per")),
        cap=read_amounts(source, entries["cap"], "cap"),
        verdict=Verdict(source.one_of(entries["then"], "then", strict)),
        reason_code=_reason(source, entries["reason"]),
        when=_when(source, entries["when"]) if "when" in entries else None,
        says=_says(source, entries["says"]),
    )


def _breaker(source: Source, table: Table, name: str) -> Breaker:
    required = ("id", "per", "window", "then")
    entries = source.fields(table, "breaker", known=(*required, "count", "amount"), required=required).entries
    source.one_of(entries["then"], "then", ("halt",))
    found = _DURATION.fullmatch(source.text(entries["window"], "window"))
    seconds = int(found[1]) * _SECONDS[found[2]] if found else 0
    if not 60 <= seconds <= 3600 or seconds % 60:
        raise source.error(entries["window"].place, "window must be whole minutes like 5m: one minute to one hour")
    if "count" not in entries and "amount" not in entries:
        raise source.error(table.place, "a breaker needs count, amount or both")
    return Breaker(
        breaker_id=name,
        per=source.one_of(entries["per"], "per", ("agent", "tenant")),
        window_seconds=seconds,
        count=source.integer(entries["count"], "count", least=1, most=1_000_000_000) if "count" in entries else None,
        amount=read_amounts(source, entries["amount"], "amount") if "amount" in entries else {},
    )


def _when(source: Source, node: Node) -> str:
    text = source.text(node, "when")
    try:
        return normalised(text)
    except ConditionError:
        return text  # the error is reported once, with its place, when the condition is compiled


def _says(source: Source, node: Node) -> str:
    text = source.text(node, "says")
    if not _SENTENCE.fullmatch(text):
        message = "says must be one sentence of 1 to 200 characters, without line breaks or other control characters"
        raise source.error(node.place, message)
    return text


def _reason(source: Source, node: Node) -> str:
    code = source.text(node, "reason", form=NAME_FORM, means="a reason code of small letters, digits and underscores")
    if code in RESERVED_REASONS:
        raise source.error(node.place, f'reason: "{code}" is reserved for the engine')
    return code


def _window(source: Source, node: Node) -> tuple[WindowKind, int, int]:
    text = source.text(node, "window")
    calendar = (WindowKind.CALENDAR_DAY.value, WindowKind.CALENDAR_MONTH.value)
    if text in calendar:
        return WindowKind(text), 0, 0
    kind, _, length = text.partition(" ")
    found = _DURATION.fullmatch(length)
    if kind != WindowKind.ROLLING or found is None:
        hint = nearest(text, calendar) or "calendar_day, calendar_month, or e.g. rolling 24h, rolling 90d"
        raise source.error(node.place, f'window: unknown window "{text}"', hint)
    seconds = int(found[1]) * _SECONDS[found[2]]
    bucket = rolling_bucket_seconds(seconds)
    if not 3600 <= seconds <= MAX_WINDOW or seconds % bucket:
        raise source.error(node.place, f'window: "{text}" must be 1h to 400d and a multiple of {bucket} seconds')
    return WindowKind.ROLLING, seconds, bucket


def _approval(source: Source, node: Node) -> DeclaredApprovalTerms:
    needed = ("expires", "role", "people")
    entries = source.fields(node, "approval", known=(*needed, "two_people_from"), required=needed).entries
    found = _DURATION.fullmatch(source.text(entries["expires"], "expires"))
    seconds = int(found[1]) * _SECONDS[found[2]] if found else 0
    if not 60 <= seconds <= MAX_EXPIRY:
        raise source.error(entries["expires"].place, "expires must be like 30m, 24h or 7d: one minute to 30 days")
    two = entries.get("two_people_from")
    return DeclaredApprovalTerms(
        expires_seconds=seconds,
        role=source.one_of(entries["role"], "role", ("approver", "admin")),
        people=source.integer(entries["people"], "people", least=1, most=5),
        two_people_from=read_amounts(source, two, "two_people_from") if two else {},
    )
