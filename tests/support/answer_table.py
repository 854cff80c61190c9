"""The documented table of the guard's answer, made from where its members are declared: `python -m tests.support.answer_table`."""

from __future__ import annotations

from sentinel.client.answers import MEMBERS, Member

_HEAD = """# The guard's answer

Every member of a 200 of `POST action/guard` ([CONTRACT.md](CONTRACT.md) §2). Made by `make docs` from `sentinel/client/answers.py`.
What is not always there is left out where it does not apply, never null. Read what you know and let the rest be: members may be added.

| Member | Always | What it says |
|---|---|---|
"""


def _line(name: str, member: Member) -> str:
    values = f" One of {', '.join(f'`{value}`' for value in member.values)}." if member.values else ""
    return f"| `{name}` | {'yes' if member.required else ''} | {member.description}{values} |"


def render() -> str:
    """The document."""
    return _HEAD + "\n".join(_line(*one) for one in MEMBERS.items()) + "\n"


if __name__ == "__main__":
    print(render(), end="")
