"""The rings of slots on paper: which stream does what and when, and which wait delays it.

Times are assumed, not measured: each work takes as long as ``TAKES_MS`` says, starts as soon as its stream is
free and all its waits are over, and streams do not disturb each other. If a wait is left out, the same rules
show which work then touches a slot too early.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ppwork.errors import PlanError

SENDER, RECEIVER = "sender", "receiver"
STREAMS = {
    "fill": (SENDER, "compute"),
    "send": (SENDER, "link to the leader"),
    "receive": (RECEIVER, "link from rank 0"),
    "broadcast": (RECEIVER, "link to the mesh"),
    "take": (RECEIVER, "compute"),
    "generate": (RECEIVER, "compute"),
}
"""Side and stream of each work, in the order of a message's life."""
TAKES_MS = {"fill": 5.0, "send": 7.0, "receive": 7.0, "broadcast": 4.0, "take": 3.0, "generate": 12.0}
EDGES = {
    "send": ("fill", "send", False),
    "refill": ("send", "fill", True),
    "relay": ("receive", "broadcast", False),
    "take": ("broadcast", "take", False),
    "reuse": ("take", "receive", True),
}
"""For each edge of ``runtime.cuda_links``: the work that comes first, the work that waits for it, and whether
the second work is for the slot's next message."""


@dataclass(frozen=True)
class SlotWork:
    """The work of one stream for one message."""

    name: str
    chunk: int
    start_ms: float
    end_ms: float

    @property
    def side(self) -> str:
        """The rank, named by its role for the message."""
        return STREAMS[self.name][0]

    @property
    def stream(self) -> str:
        """The stream on which it runs."""
        return STREAMS[self.name][1]

    def __str__(self) -> str:
        return f"{self.name} {self.chunk}"


class RingWait(NamedTuple):
    """A wait of one stream for another: kept, or left out."""

    edge: str
    before: SlotWork
    after: SlotWork

    @property
    def missed(self) -> bool:
        """Whether the second work began before the first had ended."""
        return self.after.start_ms < self.before.end_ms


@dataclass(frozen=True)
class OnPaper:
    """Messages through the rings."""

    works: dict[tuple[str, int], SlotWork]
    """All works by name and chunk."""
    waits: list[RingWait]
    """All waits, including those that were left out."""
    slots: int
    """Length of each ring: chunk k is in slot ``k % slots``."""

    @property
    def torn(self) -> list[RingWait]:
        """The missed waits: some work reads or writes a slot too early."""
        return [wait for wait in self.waits if wait.missed]


def behind(edge: str, chunk: int, slots: int) -> tuple[str, int] | None:
    """Return the work that an edge waits for, by name and chunk; ``None`` if the slot is new.

    Args:
        edge: One of ``EDGES``.
        chunk: Chunk of the work that waits.
        slots: Length of the ring.
    """
    first, _, is_next = EDGES[edge]
    of = chunk - slots if is_next else chunk
    return (first, of) if of >= 0 else None


def on_paper(*, chunks: int = 4, slots: int = 2, without: str = "", sides: str = "both") -> OnPaper:
    """Return which stream does what and when.

    Args:
        chunks: Number of messages.
        slots: Length of each ring.
        without: An edge to leave out; empty: none.
        sides: ``sender``, ``receiver`` (with every message there at the start), or ``both``.

    Raises:
        PlanError: There is no such edge on these sides, or nothing to show.
    """
    edges = [edge for edge in EDGES if sides in ("both", STREAMS[EDGES[edge][0]][0])]
    if not edges or (without and without not in edges):
        raise PlanError(
            f"There is no edge {without!r} with sides={sides!r}.",
            check_first=f"edges: {', '.join(edges or EDGES)}; sides: both, {SENDER}, {RECEIVER}",
        )
    if chunks < 1 or slots < 1:
        raise PlanError(f"There were {chunks} chunks and {slots} slots.", check_first="at least one of each")
    works: dict[tuple[str, int], SlotWork] = {}
    free: dict[tuple[str, str], float] = {}
    waits = []
    for names, chunk in _in_order(chunks, sides):
        of_these = [
            (edge, works[first], name)
            for name in names
            for edge in edges
            if EDGES[edge][1] == name and (first := behind(edge, chunk, slots)) is not None
        ]
        ready = [before.end_ms for edge, before, _ in of_these if edge != without]
        start = max([*ready, *(free.get(STREAMS[name], 0.0) for name in names)])
        for name in names:
            works[name, chunk] = SlotWork(name, chunk, start, start + TAKES_MS[name])
            free[STREAMS[name]] = start + TAKES_MS[name]
        waits += [RingWait(edge, before, works[name, chunk]) for edge, before, name in of_these]
    return OnPaper(works, waits, slots)


def _in_order(chunks: int, sides: str) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yield works so that none comes before a work that it waits for; a transfer's halves come together."""
    steps = ("fill", "send receive", "broadcast", "take", "generate")
    for chunk in range(chunks):
        for step in steps:
            names = tuple(name for name in step.split() if sides in ("both", STREAMS[name][0]))
            if names:
                yield names, chunk
