"""The documented table of risk facts, made from where they are declared: `python -m tests.support.facts_table`."""

from __future__ import annotations

from worker.refunds.risk_facts import MAX_COUNT, RISK_FACTS

_HEAD = f"""# Risk facts

What the worker tells the authority of a refund row, under `params.risk`. Made by `make docs` from `worker/refunds/risk_facts.py`.
A row may hand in any of them under `risk` ([formats.md](formats.md)): that can tighten what the ledger says, never loosen it.
A flag is true or false, a count an integer from 0 to {MAX_COUNT:,}. What nobody knows is left out. Which of them a policy
needs, and from which number on, is said in `policies/`.

| Fact | Type | What it says |
|---|---|---|
"""


def render() -> str:
    """The document."""
    lines = (f"| `{fact.name}` | {'flag' if fact.kind is bool else 'count'} | {fact.says} |" for fact in RISK_FACTS)
    return _HEAD + "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(render(), end="")
