"""Groups whose ranks were at different collectives when a run failed, by their flight records."""

from __future__ import annotations

from dataclasses import dataclass

from ppwork.errors import named_ranks
from ppwork.protocol.topology import LEADER_RANK
from ppwork.records.flight import Collective, Flight


@dataclass(frozen=True)
class FlightDifference:
    """A group whose ranks were not at the same collective."""

    group: str
    at: dict[int, Collective]

    @property
    def behind(self) -> tuple[int, ...]:
        """The ranks with the lowest number, for which the others wait; empty if only the kinds differ."""
        numbers = {rank: collective.number for rank, collective in self.at.items()}
        low = min(numbers.values())
        return tuple(r for r, n in numbers.items() if n == low) if low < max(numbers.values()) else ()

    def __str__(self) -> str:
        each = (f"rank {rank} at collective {c.number} ({c.kind})" for rank, c in sorted(self.at.items()))
        behind = f"; behind: {named_ranks(self.behind)}" if self.behind else ""
        return f"{self.group}: {', '.join(each)}{behind}"


def differences(flights: dict[int, Flight]) -> list[FlightDifference]:
    """Return the groups whose ranks were at different collectives, as far as their records tell.

    On ``mesh_pg`` followers post their receives ahead, so a follower with a larger number is normal there.
    """
    by_group: dict[str, dict[int, Collective]] = {}
    for rank, flight in flights.items():
        for name, collective in flight.at().items():
            by_group.setdefault(name, {})[rank] = collective
    return [
        FlightDifference(name, at)
        for name, at in by_group.items()
        if len({(c.number, c.kind) for c in at.values()}) > 1 and not _posted_ahead(name, at)
    ]


def _posted_ahead(group: str, at: dict[int, Collective]) -> bool:
    leader = at.get(LEADER_RANK)
    return (
        group.startswith("mesh_pg")
        and leader is not None
        and all(c.kind == leader.kind and c.number >= leader.number for c in at.values())
    )
