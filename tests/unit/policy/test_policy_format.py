"""The file format: what is wrong is refused at load, with file, line, rule and a hint."""

from __future__ import annotations

from pathlib import Path

import pytest
from policy_samples import POLICY, compile_text

from sentinel.authority.reasons import STANDINGS
from sentinel.policy.compile import try_compile
from sentinel.policy.errors import PolicyError
from sentinel.policy.parse import RESERVED_LIMIT_IDS

RULE = "when: amount_minor <= numbers.allow_up_to"
SENTENCE = "    says: The amount is small.\n"
CAP = '    cap: {USD: "20.00", JPY: "2000"}\n'

# what is replaced, by what, and what the message must contain: text, the line's text, the rule
REFUSED = {
    "unknown_top_key": ("zone: UTC", "zones: UTC", 'unknown key "zones"', None),
    "unknown_rule_key": ("reason: small_amount", "reason: a\n    reasons: b", 'unknown key "reasons"', "small"),
    "duplicate_key": ("zone: UTC", "zone: UTC\nzone: UTC", 'duplicate key "zone"', None),
    "missing_key": ("version: sample-v1\n", "", '"version" is missing', None),
    "missing_rule_key": ("    reason: small_amount\n", "", '"reason" is missing', "small"),
    "duplicate_rule_id": ("id: often", "id: known_fraud", 'duplicate id "known_fraud"', "known_fraud"),
    "limit_with_a_rules_id": ("id: account_day", "id: small", 'duplicate id "small"', "small"),
    "misspelt_fact": ("when: risk.known", "when: risk.knwon", "undeclared reference to 'risk.knwon'", "known_fraud"),
    "misspelt_number": ("numbers.allow_up_to", "numbers.alow_up_to", "numbers.alow_up_to", "small"),
    "money_is_not_a_number": (RULE, "when: amount <= numbers.allow_up_to", "undeclared reference to 'amount'", "small"),
    "int_against_text": (RULE, "when: amount_minor <= 'x'", "no matching overload", "small"),
    "int_against_fraction": (RULE, "when: amount_minor <= 10.5", "a number with a fraction", "small"),
    "exponent": (RULE, "when: amount_minor <= 1e3", "a number with a fraction", "small"),
    "double": (RULE, "when: double(amount_minor) <= double(5)", '"double" is not accepted', "small"),
    "dyn": (RULE, "when: dyn(amount_minor) <= 5", '"dyn" is not accepted', "small"),
    "has": ("when: risk.known", "when: has(risk.known)", '"has" is not accepted', "known_fraud"),
    "has_with_a_space": ("when: risk.known", "when: 'has (risk.known)'", '"has" is not accepted', "known_fraud"),
    "not_a_bool": (RULE, "when: amount_minor", "must be true or false, but is of type INT", "small"),
    "not_cel": (RULE, "when: amount_minor <=", "Syntax error", "small"),
    "raw_text": (RULE, "when: currency == r'US'", "only plain quoted text", "small"),
    "long_condition": (RULE, "when: " + "true || " * 300 + "true", "longer than 2000", "small"),
    "empty_condition": (RULE, 'when: "// nothing"', "is empty", "small"),
    "yaml_true": (RULE, "when: true", "YAML reads this as bool", "small"),
    "unknown_verdict": ("then: ALLOW", "then: ALOW", 'unknown value "ALOW"', "small"),
    "small_verdict": ("then: ALLOW", "then: allow", 'unknown value "allow"', "small"),
    "limit_verdict": ("REQUIRED\n    reason: limit", "X\n    reason: limit", "APPROVAL_X", "account_day"),
    "limit_allowing": (CAP + "    then: APPROVAL_REQUIRED", CAP + "    then: ALLOW", 'value "ALLOW"', "account_day"),
    "reason_with_spaces": ("reason: small_amount", "reason: Small amount", "is not a reason code", "small"),
    "reason_of_the_engine": ("reason: small_amount", "reason: halted", "reserved for the engine", "small"),
    "number_without_quotes": ('USD: "10.00"', "USD: 10.00", "YAML reads this as float", None),
    "number_too_fine": ('USD: "10.00"', 'USD: "10.005"', "more than 2 decimal digits", None),
    "yen_with_a_fraction": ('JPY: "1000"', 'JPY: "1000.5"', "more than 0 decimal digits", None),
    "negative_number": ('USD: "10.00"', 'USD: "-10.00"', "plain decimal number", None),
    "unknown_currency": ('USD: "10.00"', 'USB: "10.00"', 'not an ISO 4217 currency', None),
    "unknown_window": ("window: calendar_day", "window: calender_day", 'unknown window "calender_day"', "account_day"),
    "window_without_length": ("window: calendar_day", "window: rolling", "unknown window", "account_day"),
    "window_too_long": ("window: calendar_day", "window: rolling 401d", "must be 1h to 400d", "account_day"),
    "window_off_its_grid": ("window: calendar_day", "window: rolling 25h30m", "unknown window", "account_day"),
    "per_without_currency": ("per: [account, currency]", "per: [account]", "must contain currency", "account_day"),
    "per_unknown_fact": ("per: [account,", "per: [acount,", '"acount" is neither', "account_day"),
    "per_number": ("per: [account,", "per: [risk.count,", "nor a fact of type string", "account_day"),
    "unknown_type": ("{type: bool, ", "{type: boolean, ", 'unknown value "boolean"', None),
    "unknown_request_field": ("from: params.account_ref", "from: parms.a", "not a part of a guard request", None),
    "params_alone": ("from: params.account_ref", "from: params", "only params and evidence_context have parts", None),
    "bounds_on_text": ("from: params.account_ref", "from: params.account_ref, max: 3", "facts of type int", None),
    "bounds_that_no_number_meets": ("min: 0,", "min: 3, max: 2,", "no number is at least 3 and at most 2", None),
    "number_from_a_text": ("from: params.risk.count,", "from: risk_class,", "no request has a value of type int at risk_class", None),
    "number_from_the_amount": ("from: params.risk.count,", "from: params.amount,", "no request has a value of type int at params.amount", None),
    "amount_as_it_was_written": (
        "from: params.account_ref", "from: [params.a, params.amount.value]", "of type string at params.amount.value", None),
    "time_from_the_currency": ("from: params.ordered_at", "from: params.amount.currency", "of type timestamp at", None),
    "fact_named_like_the_language": ("  ordered_at:", "  present.x:", "reserved in the language of conditions", None),
    "fact_named_like_minor_units": ("  ordered_at:", "  amount_minor:", "minor units", None),
    "fact_inside_a_fact": ("  ordered_at:", "  account.age:", '"account" is also a fact', None),
    "limit_on_another_amount": ("from: params.amount", "from: params.total", "come from params.amount", None),
    "bare_star": ("[sample.pay]", '["*"]', "is not an action", None),
    "star_in_the_middle": ("[sample.pay]", '["sample.*.pay"]', "is not an action", None),
    "action_twice": ("[sample.pay]", "[sample.pay, sample.pay]", "listed twice", None),
    "unknown_zone": ("zone: UTC", "zone: Europe/Atlantis", "not a known time zone", None),
    "zone_that_is_an_abbreviation": ("zone: UTC", "zone: CET", "write UTC or an area and a place, like Europe/Berlin", None),
    "zone_of_a_country": ("zone: UTC", "zone: Japan", "write UTC or an area and a place, like Europe/Berlin", None),
    "unknown_role": ("role: approver", "role: viewer", 'unknown value "viewer"', None),
    "nobody": ("people: 1", "people: 0", "between 1 and 5", None),
    "octal_people": ("people: 1", "people: 01", "plain digits", None),
    "endless_approval": ("expires: 30m", "expires: 31d", "one minute to 30 days", None),
    "alias": ("zone: UTC", "zone: &z UTC", "anchors and aliases", None),
    "tag": ("zone: UTC", "zone: !!python/name:os.system UTC", "is not allowed", None),
    "two_documents": ("zone: UTC", "zone: UTC\n---\nzone: UTC", "not valid YAML", None),
    "deep": ("zone: UTC", "zone: " + "[" * 20 + "]" * 20, "nested deeper", None),
    "once_per_evidence": ("zone: UTC", "once_per: {refund: evidence_context.x}", "once_per: evidence_context is not part", None),
    "once_per_without_a_thing": ("zone: UTC", "once_per: params.refund_id", "name the thing that happens once", None),
    "once_per_two_things": (
        "zone: UTC", "once_per: {refund: params.refund_id, order: params.order_id}", "must name one thing, not 2", None),
    "once_per_nothing": ("zone: UTC", "once_per: {}", "must name one thing, not 0", None),
    "once_per_loud_thing": ("zone: UTC", "once_per: {Refund: params.refund_id}", '"Refund" is not a name of small', None),
    "once_per_list": ("zone: UTC", "once_per: [params.refund_id]", "once_per", None),
    "once_per_strange_path": ("zone: UTC", "once_per: {refund: parms.refund_id}", "not a part of a guard request", None),
    "amount_from_evidence": (
        "from: params.amount}", "from: [params.amount, evidence_context.amount]}", "come from params.amount", None),
    "per_from_evidence": (
        "from: params.account_ref", "from: [params.account_ref, evidence_context.who]",
        'a limit\'s per may not rest on "account"', "account_day"),
    "evidence_alone": ("from: params.account_ref", "from: evidence_context", "have parts", None),
    "one_of_numbers": ("from: params.risk.count,", "from: params.risk.count, one_of: [a],", "for facts of type string", None),
    "zero_character_in_one_of": (
        "from: params.account_ref", 'from: params.account_ref, one_of: [late, "a\\0b"]', "zero character", None),
    "zero_character_in_a_condition": (RULE, "when: \"account == 'a\\0b'\"", "zero character", "small"),
    "one_of_twice": ("from: params.account_ref", "from: params.account_ref, one_of: [a, a]", "listed twice", None),
    "one_of_nothing": ("from: params.account_ref", "from: params.account_ref, one_of: []", "must not be empty", None),
    "one_of_yaml_words": ("from: params.account_ref", "from: params.account_ref, one_of: [on]", "YAML reads this as bool", None),
    "reason_and_reason_from": (
        "reason: too_often", "reason: too_often\n    reason_from: account", "use only one of them", "often"),
    "reason_from_on_allow": ("reason: small_amount", "reason_from: account", "the requester would choose the reason", "small"),
    "reason_from_nothing": ("reason: too_often", "reason_from: nobody", "not a fact of type string with one_of", "often"),
    "reason_from_open_text": ("reason: too_often", "reason_from: account", "not a fact of type string with one_of", "often"),
    "approvable_denial": ("reason: known_fraud", "reason: known_fraud\n    approvable: false", "APPROVAL_REQUIRED", "known_fraud"),
    "approvable_word": ("reason: too_often", "reason: too_often\n    approvable: off", "must be true or false", "often"),
    "rule_without_sentence": (SENTENCE, "", 'rule: "says" is missing', "small"),
    "limit_without_sentence": ("    says: What one account gets in a day.\n", "", 'limit: "says" is missing', "account_day"),
    "empty_sentence": (SENTENCE, '    says: ""\n', "says", "small"),
    "blank_sentence": (SENTENCE, '    says: "  "\n', "one sentence of 1 to 200 characters", "small"),
    "long_sentence": (SENTENCE, f"    says: {'x' * 201}\n", "one sentence of 1 to 200 characters", "small"),
    "sentence_of_two_lines": (SENTENCE, "    says: |\n      The amount\n      is small.\n", "without line breaks", "small"),
    "control_character_in_a_sentence": (SENTENCE, '    says: "The amount\\x07 is small."\n', "control characters", "small"),
    "late_control_character_in_a_sentence": (SENTENCE, '    says: "The amount\\x9b is small."\n', "control characters", "small"),
    "sentence_that_is_a_number": (SENTENCE, "    says: 7\n", "YAML reads this as int", "small"),
    "policy_none": ("policy: sample", "policy: none", "having no policy", None),
}  # fmt: skip


OUTCOMES = sorted(
    STANDINGS.keys() | {"handled_by_person", "second_administrator", "customer_declined", "confirmation_expired"}
)
"""Codes that say what became of an operation: programs act on them, e.g. `handled_by_person` counts as paid elsewhere."""


@pytest.mark.parametrize("code", OUTCOMES)
def test_no_rule_or_limit_gives_a_reason_that_says_what_became_of_an_operation(code: str, tmp_path: Path) -> None:
    reasons = ("reason: known_fraud", "reason: limit_exceeded")
    texts = [POLICY.replace(reason, f"reason: {code}", 1) for reason in reasons]
    named = POLICY.replace("from: params.account_ref", f"from: params.account_ref, one_of: [late, {code}]", 1)
    texts.append(named.replace("reason: known_fraud", "reason_from: account", 1))
    for text in texts:
        assert text != POLICY
        with pytest.raises(PolicyError, match=f'"{code}" is reserved for the engine'):
            compile_text(tmp_path, text)


@pytest.mark.parametrize("name", RESERVED_LIMIT_IDS)
def test_no_limit_is_named_like_a_check_of_the_database(name: str, tmp_path: Path) -> None:
    """Both are recorded side by side, so that a halt would be explained as that limit's exhausted budget."""
    with pytest.raises(PolicyError, match=f'limit "{name}": id: "{name}" is reserved for the engine') as caught:
        compile_text(tmp_path, POLICY.replace("id: account_day", f"id: {name}"))
    assert (caught.value.line, caught.value.column) == (31, 9)
    rule = compile_text(tmp_path, POLICY.replace("id: known_fraud", f"id: {name}"))
    assert rule.policy.rules[0].rule_id == name


@pytest.mark.parametrize("name", REFUSED)
def test_a_wrong_file_is_refused_with_file_line_and_rule(name: str, tmp_path: Path) -> None:
    old, new, message, rule = REFUSED[name]
    assert old in POLICY
    with pytest.raises(PolicyError) as caught:
        compile_text(tmp_path, POLICY.replace(old, new, 1))
    error = caught.value
    assert message in error.message
    assert (error.file, error.rule) == ("sample.yaml", rule)
    # The line is known for everything but a key that is not there and a file that is no YAML at all.
    assert error.line > 0
    assert error.code == "policy-invalid"
    assert "\n" not in error.detail


def test_the_sample_itself_is_accepted(tmp_path: Path) -> None:
    assert compile_text(tmp_path, POLICY).policy.policy_id == "sample"


def test_a_sentence_may_have_two_hundred_characters_and_be_folded(tmp_path: Path) -> None:
    long = compile_text(tmp_path, POLICY.replace(SENTENCE, f"    says: {'é' * 200}\n"))
    folded = compile_text(tmp_path, POLICY.replace(SENTENCE, "    says: >-\n      The amount\n      is small.\n"))
    assert [one.says for policy in (long, folded) for one in policy.policy.rules[2:]] == [
        "é" * 200,
        "The amount is small.",
    ]


def test_an_error_is_explained_as_a_compiler_would(tmp_path: Path) -> None:
    with pytest.raises(PolicyError) as caught:
        compile_text(tmp_path, POLICY.replace("when: risk.count >= 3", "when: 5 > 3 && risk.cuont >= 3"))
    assert caught.value.explain().splitlines() == [
        "sample.yaml:22:20: error: rule \"often\": when: undeclared reference to 'risk.cuont'",
        "   22 |     when: 5 > 3 && risk.cuont >= 3",
        "      |                    ^",
        '      = did you mean "risk.count"?',
    ]


@pytest.mark.parametrize(
    ("written", "line", "column"),
    [
        ('when: "risk.knwon"', 17, 12),
        ("when: 'risk.knwon'", 17, 12),
        ("when: |\n      true &&\n        risk.knwon", 19, 9),
        ("when: |\n      true &&\n", 18, 14),
        ("when: >-\n      true &&\n      risk.knwon", 17, 11),
        ("when: |", 17, 11),
        ("when: |\n      // nothing", 18, 7),
    ],
)
def test_the_caret_finds_its_place_in_every_kind_of_yaml_text(
    written: str, line: int, column: int, tmp_path: Path
) -> None:
    with pytest.raises(PolicyError) as caught:
        compile_text(tmp_path, POLICY.replace("when: risk.known", written, 1))
    assert (caught.value.line, caught.value.column) == (line, column)


FOLDED = (
    "when: >\n      amount_minor <= 5   // small ones\n      && !risk.known",
    "when: >-\n      amount_minor <= 5\n\n      && !risk.known // all of them\n",
    "when: amount_minor <= 5 // small ones\n      && !risk.known",
    "when: 'amount_minor <= 5 // small ones\n      && !risk.known'",
    'when: "amount_minor <= 5 // small ones\n      && !risk.known"',
    "when: >\n      amount_minor <= 5 &&   // what follows is needed\n      !risk.known",
)


@pytest.mark.parametrize("written", FOLDED)
@pytest.mark.parametrize(("old", "line", "rule"), [(RULE, 27, "small"), (CAP, 36, "account_day")])
def test_a_comment_in_lines_that_yaml_joins_is_refused_before_it_takes_the_rest_away(
    written: str, old: str, line: int, rule: str, tmp_path: Path
) -> None:
    new = written if old == RULE else f"{CAP}    {written}\n"
    with pytest.raises(PolicyError) as caught:
        compile_text(tmp_path, POLICY.replace(old, new, 1))
    assert (caught.value.line, caught.value.rule) == (line, rule)
    assert caught.value.message == "when: YAML joins these lines into one, and the comment would reach to its end"
    assert caught.value.hint == 'write it after "|", which keeps the lines, or without "//"'


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        ("when: |\n      amount_minor <= 5 // small ones\n      && !risk.known", "amount_minor <= 5 && ! risk.known"),
        ("when: amount_minor <= 5 // small ones", "amount_minor <= 5"),
        ("when: >-\n      account == 'https://a.example'\n      && !risk.known", "account == 'https://a.example' && ! risk.known"),
        ("when: >-\n      amount_minor / 2 <= 5\n      && !risk.known", "amount_minor / 2 <= 5 && ! risk.known"),
    ],
)  # fmt: skip
def test_a_comment_that_ends_at_its_line_takes_nothing_away(written: str, wanted: str, tmp_path: Path) -> None:
    assert compile_text(tmp_path, POLICY.replace(RULE, written, 1)).policy.rules[2].when == wanted


@pytest.mark.parametrize("line_break", ["\\r", "\\u2028", "\\u2029", "\\x85", "\\v"])
def test_a_comment_with_a_line_break_that_ends_none_is_refused(line_break: str, tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="a comment with an unusual line break in it"):
        compile_text(tmp_path, POLICY.replace(RULE, f'when: "true // small {line_break} && risk.known"', 1))


def test_one_check_names_everything_that_is_wrong_in_the_order_of_lines(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(
        POLICY.replace("when: risk.known", "when: risk.knwon")
        .replace("then: ALLOW", "then: MAYBE")
        .replace("people: 1", "people: many")
    )
    errors = try_compile(path)[1]
    assert [error.rule for error in errors] == ["known_fraud", "small", None]
    assert [error.line for error in errors] == sorted(error.line for error in errors)


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("when: risk.known", "when: risk.knwon", 'rule "known_fraud": when'),
        ("per: [account, currency]", "per: [account]", 'limit "account_day": per must contain currency'),
        (CAP, CAP + "    when: risk.knwon\n", 'limit "account_day": when: undeclared'),
        (CAP, CAP + "    when: risk.known\n", 'limit "account_day": whether a limit applies may not rest on'),
        ("params.account_ref, vouched_by: worker", "params.account_ref", 'limit "account_day": a limit\'s per may not rest on'),
        ("approval:", "breakers: [{id: fast, per: agent, window: 2h, count: 2, then: halt}]\napproval:", 'breaker "fast"'),
        ("id: account_day", "id: small", 'limit "small": duplicate id "small"'),
    ],
)  # fmt: skip
def test_an_error_calls_a_rule_a_rule_and_a_limit_a_limit(old: str, new: str, named: str, tmp_path: Path) -> None:
    text = POLICY.replace("params.risk.known, vouched_by: worker", "params.risk.known")
    with pytest.raises(PolicyError) as caught:
        compile_text(tmp_path, text.replace(old, new, 1))
    assert named in caught.value.detail
    assert named in caught.value.explain().splitlines()[0]
    assert PolicyError.from_json(caught.value.as_json()).explain() == caught.value.explain()


@pytest.mark.parametrize(
    ("old", "new", "hint"),
    [
        ("when: risk.known", "when: !risk.known && risk.count > 1", 'begins with "!" as a tag'),
        ("when: risk.known", "when: !present.account", 'begins with "!" as a tag'),
        ("says: The amount is small.", "says: Note: it is small.", 'with ": " in it in quotes'),
        ("says: The amount is small.", "says: #1 of all.", 'begins with "#" as a comment'),
        ("says: The amount is small.", "says: @small", 'cannot begin with "@"'),
        ("when: risk.known", 'when: "account == "a""', "ends at the next"),
        ("when: risk.known", 'when: "EUR" == currency', "ends at the next"),
        ("    then: DENY", '      then: "DENY"  # never', "indentation of this line"),
        ("    then: DENY", "\tthen: DENY", "indent with spaces"),
        ("    then: DENY", "      then: DENY", "indentation of this line"),
        ("    says: The amount is small.", "   says: The amount is small.", "indentation of this line"),
        ('USD: "10.00"', 'NO: "10.00"', 'write "NO" in quotes'),
        ("when: risk.known", "when: risk.known and risk.count > 1", "&& is and"),
        ("when: risk.known", "when: risk.known OR risk.count > 1", "|| is or"),
        ("when: risk.known", "when: not risk.known", "! is not"),
        ("when: risk.known", "when: risk.known = true", "== compares"),
        ("when: risk.known", "when: risk.known & risk.known", "&& is and"),
        ("numbers.allow_up_to", "numbers.allow_up_to.USD", "in the operation's currency already"),
        ("numbers.allow_up_to", 'numbers.allow_up_to["USD"]', "in the operation's currency already"),
        ("when: risk.known", "when: now.hour > 8", "now.getHours"),
        ("zone: UTC", "zone: Europe/Berln", 'did you mean "Europe/Berlin"?'),
        ('USD: "10.00"', 'USD: "10000000000000000000.00"', None),
    ],
)
def test_a_common_mistake_is_told_with_its_mend(old: str, new: str, hint: str | None, tmp_path: Path) -> None:
    with pytest.raises(PolicyError) as caught:
        compile_text(tmp_path, POLICY.replace(old, new, 1))
    if hint is None:
        assert "at most 1000000000000 minor units" in caught.value.message
    else:
        assert hint in (caught.value.hint or "")


def test_text_that_is_not_utf8_is_told_where(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"policy: a\nlabel: caf\xe9\n")
    (tmp_path / "wide.yaml").write_bytes(POLICY.encode("utf-16"))
    [latin], [wide] = (try_compile(tmp_path / name)[1] for name in ("latin.yaml", "wide.yaml"))
    assert latin.hint == "see line 2"
    assert "UTF-16" in (wide.hint or "")


def test_a_file_that_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"policy: caf\xe9")
    (tmp_path / "large.yaml").write_bytes(b"#" * 300_000)
    (tmp_path / "empty.yaml").write_bytes(b"")
    (tmp_path / "control.yaml").write_bytes(b"policy: \x00")
    for name in ("missing", "latin", "large", "empty", "control"):
        [error] = try_compile(tmp_path / f"{name}.yaml")[1]
        assert f"{name}.yaml" in error.detail


# Everything that decides is part of the digest; how it is laid out is not.
SAME = {
    "comment": ("zone: UTC", "zone: UTC  # a comment"),
    "quotes": ("label: Sample Policy", 'label: "Sample Policy"'),
    "key_order": ("then: ALLOW\n    reason: small_amount", "reason: small_amount\n    then: ALLOW"),
    "spaces_in_a_condition": ("risk.count >= 3", "risk . count>=3"),
    "comment_in_a_condition": ("when: risk.count >= 3", "when: |\n      risk.count >= 3 // often"),
    "shorter_number": ('USD: "10.00"', 'USD: "10"'),
    "other_unit_of_time": ("expires: 30m", "expires: 1800s"),
    "list_of_one": ("from: params.account_ref", "from: [params.account_ref]"),
    "default_zone": ("zone: UTC\n", ""),
    "default_approvable": ("reason: too_often", "reason: too_often\n    approvable: true"),
}
OTHER = {
    "label": ("label: Sample Policy", "label: Sample policy"),
    "zone": ("zone: UTC", "zone: Europe/Berlin"),
    "number": ('USD: "10.00"', 'USD: "10.01"'),
    "verdict": ("then: DENY", "then: APPROVAL_REQUIRED"),
    "reason": ("reason: too_often", "reason: often"),
    "condition": ("risk.count >= 3", "risk.count > 3"),
    "source": ("from: params.account_ref", "from: params.account_id"),
    "bound": ("min: 0", "min: 1"),
    "window": ("window: calendar_day", "window: rolling 24h"),
    "per": ("per: [account, currency]", "per: [currency]"),
    "cap": ('cap: {USD: "20.00"', 'cap: {USD: "20.01"'),
    "people": ("people: 1", "people: 2"),
    "role": ("role: approver", "role: admin"),
    "expiry": ("expires: 30m", "expires: 31m"),
    "two_people": ('two_people_from: {USD: "9.00"}', 'two_people_from: {USD: "9.01"}'),
    "once": ("zone: UTC", "zone: UTC\nonce_per: {refund: params.refund_id}"),
    "once_thing": ("zone: UTC", "zone: UTC\nonce_per: {order: params.refund_id}"),
    "action": ("[sample.pay]", "[sample.pay, sample.give]"),
    "one_of": ("from: params.account_ref", "from: params.account_ref, one_of: [a, b]"),
    "approvable": ("reason: too_often", "reason: too_often\n    approvable: false"),
    "sentence": ("says: The amount is small.", "says: The amount is at most 10."),
    "limits_sentence": ("says: What one account gets in a day.", "says: What an account gets in a day."),
}


@pytest.mark.parametrize("name", SAME)
def test_layout_does_not_change_the_digest(name: str, tmp_path: Path) -> None:
    old, new = SAME[name]
    assert old in POLICY
    assert compile_text(tmp_path, POLICY.replace(old, new, 1)).digest == compile_text(tmp_path, POLICY).digest


@pytest.mark.parametrize("name", OTHER)
def test_meaning_changes_the_digest(name: str, tmp_path: Path) -> None:
    old, new = OTHER[name]
    assert old in POLICY
    assert compile_text(tmp_path, POLICY.replace(old, new, 1)).digest != compile_text(tmp_path, POLICY).digest


def test_spaces_inside_quoted_text_of_a_condition_are_meaning(tmp_path: Path) -> None:
    texts = ["account == 'a . b'", "account == 'a.b'", "account == 'a  . b'"]
    digests = {compile_text(tmp_path, POLICY.replace("risk.known\n", text + "\n", 1)).digest for text in texts}
    assert len(digests) == 3
