"""Which agents the public board shows, under which name, and what they work on. No other agent is shown."""

from __future__ import annotations

from dataclasses import dataclass

from sentinel.core.errors import InvalidInput
from sentinel.core.operation import check_identifier


@dataclass(frozen=True, slots=True)
class PublicAgents:
    """`named` maps an agent's id to (board name, source); with `everyone` all other agents are shown too."""

    named: dict[str, tuple[str, str]]
    everyone: bool = False

    @property
    def ids(self) -> list[str] | None:
        """The agents to select, or None for all of them."""
        return None if self.everyone else list(self.named)

    def name(self, agent_id: str) -> str | None:
        """The agent's name in the board's status; None if the settings give it none."""
        named = self.named.get(agent_id)
        return named[0] if named else None

    def source(self, agent_id: str) -> str | None:
        """What the agent works on, e.g. "refunds"; None if the settings do not say."""
        named = self.named.get(agent_id)
        return named[1] if named else None


def parse_public_agents(text: str) -> PublicAgents:
    """Parse `agent_id=name:source`, comma separated, `*` for every other agent too. Raises `InvalidInput`."""
    named: dict[str, tuple[str, str]] = {}
    everyone = False
    for part in (piece.strip() for piece in text.split(",")):
        if part == "*":
            everyone = True
        elif part:
            agent_id, _, shown = part.partition("=")
            name, _, source = shown.partition(":")
            for value in (agent_id, name, source):
                check_identifier(value, part, 128)
            named[agent_id] = (name, source)
    if "tenant" in {name for name, _ in named.values()}:
        raise InvalidInput.of("tenant", "is not a valid name for an agent on the board")
    return PublicAgents(named, everyone)
