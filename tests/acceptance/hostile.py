"""Amounts, texts and bodies that must be refused: what people and programs send by mistake or on purpose."""

from __future__ import annotations

import itertools

PLACE = "@@"
"""Where an amount goes in `WITH_AMOUNT`."""


def hostile_amounts() -> list[str]:
    """JSON texts of an amount's value, in USD, each to be refused with 400."""
    numbers = """0 -1 -0 -0.01 0.0 0.00 126.505 126.5050 1.001 0.001 0.009 1e2 1E2 1e-2 1e400 -1e400 1.5e1 126.0e0 9999999999999 10000000000.01
        1000000000000 99999999999999999 123456789012345678901234567890 0.1000000 126.00000001 true false [] {} [1] [126] {"value":1} null
        18446744073709551616 9223372036854775808 9007199254740993000 0.30000000000000004""".split()
    malformed = "NaN Infinity -Infinity +1 01 00 .5 1. 0x10 1_000 1,5 0b1 1e 1e+ --1 - 1.2.3 Nan nan INF inf 126USD $126".split()
    spellings = [
        "", " ", "0", "0.00", "-1", "-0", "+1", "+126", " 126", "126 ", "126\\n", "\\n126", "126\\t", "126\\r", "126\\u0000", "\\u0000126",
        "1_000", "1,000", "1.000,00", "1 000", "126,50", "126.", ".50", "126.505", "126.5000", "126.50.1", "1e2", "1E2", "1e-2", "0x7e",
        "0b11", "0o17", "00126", "0126", "007", "NaN", "nan", "Infinity", "-Infinity", "inf", "true", "null", "None", "USD 126", "126 USD",
        "$126", "126$", "€126", "126%", "1/2", "1+1", "1-1", "(126)", "'126'", "\\\"126\\\"", "126;", "126--", "126 OR 1=1", "126); drop table x",
        "one", "l26", "I26", "O", "1O0", "--126", "++126", "-+126", "126-", "126+", "1..2", "..", ".", "-", "+", "e", "1e", "e1",
        "10000000000000", "10000000000.01", "99999999999999999999", "9" * 40, "1" * 400, "0." + "0" * 30 + "1", "126." + "0" * 40,
        "\\u00bd", "1\\u00bd", "\\u2160", "\\u00b2", "1\\u00b2", "\\u2212126", "126\\u20ac", "126\\u00a0", "\\u00a0126", "126\\u200b", "\\u200b126",
        "12\\u200d6", "\\ufeff126", "126\\u202e", "\\u202e126", "126\\u2028", "126\\u0085", "126\\u000b", "126\\u000c", "12\\u00ad6",
        "\\ud835\\udfcf", "\\ud835\\udfd8.5", "\\u2488", "\\u2460", "\\u3007", "\\u4e00", "\\uff0b1", "\\uff11.5", "1\\uff0e50", "1\\u066b50", "1\\u066c000",
    ]  # fmt: skip
    # The digits of twenty writing systems: each looks like a number to some parser.
    zeros = (
        "0660 06f0 07c0 0966 09e6 0a66 0ae6 0b66 0be6 0c66 0ce6 0d66 0de6 0e50 0ed0 0f20 1040 17e0 1810 ff10".split()
    )
    foreign = ["".join(f"\\u{int(zero, 16) + digit:04x}" for digit in (1, 2, 6)) for zero in zeros]
    mixed = [f"1{text[6:]}" for text in foreign]
    return [*numbers, *malformed, *(f'"{text}"' for text in itertools.chain(spellings, foreign, mixed))]


HOSTILE_IDENTIFIERS = [
    "", " ", "a b", "a\nb", "a\n", "\na", "a\t", "a\rb", "a\x00b", "а", "refund.сreate", "аgent", "ａgent", "agent\u200b", "\u200bagent", "ag\u200dent",
    "\ufeffagent", "agent\u202e", "\u202eagent", "ag\u00adent", "agént", "agent\u0301", "agent\u00a0", "a\u2028b", "a\u0085b", "agent!", "agent;", "a'b",
    'a"b', "a\\b", "a<b>", "a&b", "a%b", "a#b", "a?b", "a*b", "a+b", "a=b", "a,b", "a|b", "a~b", "a`b", "a^b", "{a}", "[a]", "(a)", "a$b", "١٢٣", "😀",
]  # fmt: skip


def nested(depth: int, kind: str = "object") -> str:
    """JSON text nested that deep below the body's own object."""
    return '{"a":' * depth + "1" + "}" * depth if kind == "object" else "[" * depth + "]" * depth
