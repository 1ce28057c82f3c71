"""torch's flight recorder, read back: at which collective of each group every rank was when it failed.

Only collectives are in it; point-to-point is not (gloo), so the link between rank 0 and the leader is told by
the commitment points in the span files. A rank that was killed, frozen or stuck could not write any.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from ppwork.protocol.topology import GROUP_ORDER, LEADER_RANK
from ppwork.records.files import read_json

KEPT = 32
"""Collectives kept of each group, the newest."""


class Collective(msgspec.Struct, frozen=True):
    """One collective that a rank began."""

    group: str
    number: int
    """Counts this group's collectives on this rank, from 1."""
    kind: str
    """Such as ``broadcast``."""
    ended: bool
    sizes: list[list[int]] = []


class Flight(msgspec.Struct, frozen=True):
    """Flight record of one rank, written when it failed."""

    rank: int
    collectives: list[Collective]

    def last(self) -> dict[str, Collective]:
        """Return the newest collective of each group."""
        return {c.group: c for c in sorted(self.collectives, key=lambda c: c.number)}


@dataclass(frozen=True)
class Difference:
    """A group whose ranks were not at the same collective."""

    group: str
    at: dict[int, Collective]

    @property
    def behind(self) -> tuple[int, ...]:
        """The ranks with the lowest number, whom the others wait for; empty if only the kinds differ."""
        numbers = {rank: collective.number for rank, collective in self.at.items()}
        low = min(numbers.values())
        return tuple(r for r, n in numbers.items() if n == low) if low < max(numbers.values()) else ()

    def __str__(self) -> str:
        each = ", ".join(f"rank {rank} at {c.kind} {c.number}" for rank, c in sorted(self.at.items()))
        return f"{self.group}: {each}"


def group_name(torch_name: str) -> str:
    """Return our name of a group: torch numbers them as they are made, and that is one order (rule R6).

    >>> group_name("0"), group_name("1"), group_name("x")
    ('world_pg', 'mesh_pg', 'x')
    """
    names = ("world_pg", *GROUP_ORDER)
    is_ours = torch_name.isdecimal() and int(torch_name) < len(names)
    return names[int(torch_name)] if is_ours else torch_name


def flight_of(rank: int, trace: bytes | str) -> Flight:
    """Read torch's JSON dump; the newest ``KEPT`` collectives of each group.

    gloo leaves ``state`` at "scheduled" for ever; ``retired`` says whether one has ended.

    Raises:
        ValueError: It is not a dump of the flight recorder.
    """
    try:
        entries = msgspec.json.decode(trace)["entries"]
        collectives = [
            Collective(
                group_name(entry["process_group"][0]),
                entry["collective_seq_id"],
                entry["profiling_name"].rpartition(":")[2],
                entry["retired"],
                entry["input_sizes"],
            )
            for entry in entries
            if not entry["is_p2p"]
        ]
    except (msgspec.MsgspecError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(f"not a dump of the flight recorder: {error!r}") from error
    groups = dict.fromkeys(c.group for c in collectives)
    newest = ([c for c in collectives if c.group == name][-KEPT:] for name in groups)
    return Flight(rank, [collective for of_group in newest for collective in of_group])


def flight_file(run_dir: Path, rank: int) -> Path:
    """Return the path of a rank's flight record."""
    return Path(run_dir) / f"flight-rank{rank}.json"


def read_flights(run_dir: Path, world_size: int) -> dict[int, Flight]:
    """Read the flight records of all ranks; one that left none, or whose file does not read, is not in it."""
    flights = {rank: read_json(flight_file(run_dir, rank), Flight) for rank in range(world_size)}
    return {rank: flight for rank, flight in flights.items() if flight is not None}


def differences(flights: dict[int, Flight]) -> list[Difference]:
    """Return the groups whose ranks were at different collectives, as far as they wrote it down.

    On ``mesh_pg`` followers post their receives ahead, so there a follower with a larger number is as usual.
    """
    by_group: dict[str, dict[int, Collective]] = {}
    for rank, flight in flights.items():
        for name, collective in flight.last().items():
            by_group.setdefault(name, {})[rank] = collective
    return [
        Difference(name, at)
        for name, at in by_group.items()
        if len({(c.number, c.kind) for c in at.values()}) > 1 and not _posted_ahead(name, at)
    ]


def _posted_ahead(group: str, at: dict[int, Collective]) -> bool:
    leader = at.get(LEADER_RANK)
    return (
        group == "mesh_pg"
        and leader is not None
        and all(c.kind == leader.kind and c.number >= leader.number for c in at.values())
    )
