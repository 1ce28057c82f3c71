"""What simulated ranks write on, and their dice: entries with a plan's ids, times drawn from costs."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from ppwork.costs import Times, samples_of
from ppwork.observed import end_ns
from ppwork.timeline import Entry, Instant, Span

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ppwork.costs import Costs
    from ppwork.plan import Plan

Which = tuple[int, int]
"""Stream and chunk index."""


class Paper:
    """One simulated run.

    Args:
        plan: Where the cache epochs change.
        costs: What is drawn from.
        streams: Independent sources; their call ids take turns.
        seed: Draws samples and jitter; without it samples are taken in order and jitter has seed 0.
    """

    def __init__(self, plan: Plan, costs: Costs, streams: int, seed: int | None) -> None:
        self.plan, self.costs, self._streams, self._seed = plan, costs, streams, seed
        self._resets = (*plan.hard_cuts, *plan.flushes)
        self._entries: list[tuple[int, Entry]] = []

    def draw(self, name: str, which: Which) -> Callable[[Times], float]:
        """Return what picks one of some samples for a chunk; the same at every depth and order."""
        call_id = self.call_id(which)

        def pick(times: Times) -> float:
            samples = samples_of(times)
            if self._seed is None or len(samples) == 1:
                return samples[call_id % len(samples)]
            return samples[Random(f"{self._seed}/{name}/{call_id}").randrange(len(samples))]  # noqa: S311

        return pick

    def stage_ms(self, name: str, times: Times, which: Which, ranks: Iterable[int]) -> float:
        """Return the time of a stage's step: the slowest of the ranks that do it together."""
        base, jitter = self.draw(name, which)(times), self.costs.jitter
        if not jitter:
            return base
        key = f"{self._seed or 0}/{name}/{self.call_id(which)}"
        return base * max(1 + Random(f"{key}/{r}").uniform(-jitter, jitter) for r in ranks)  # noqa: S311

    def handover_ms(self, step: str, which: Which) -> float:
        """Return the gap before a step, by its name in ``Handovers``."""
        times: Times = getattr(self.costs.handovers, step)
        return self.draw(f"handover {step}", which)(times)

    def span(self, rank: int, name: str, lane: str, times: tuple[float, float], which: Which) -> None:
        """Write a span; times in milliseconds."""
        start, end = (round(ms * 1e6) for ms in times)
        self._entries.append((rank, Span(name, lane, start, end, **self._ids(which))))

    def instant(self, rank: int, name: str, at_ms: float, which: Which, **figures: float) -> None:
        """Write an instant."""
        # All on ``main``, as the runtime records them.
        entry = Instant(name, "main", round(at_ms * 1e6), figures=figures, **self._ids(which))
        self._entries.append((rank, entry))

    def by_rank(self, world_size: int) -> dict[int, list[Entry]]:
        """Return the entries in the order in which a rank would have written them: as they end."""
        self._entries.sort(key=lambda item: end_ns(item[1]))
        return {rank: [e for r, e in self._entries if r == rank] for rank in range(world_size)}

    def call_id(self, which: Which) -> int:
        """Return the call id of a chunk."""
        stream, chunk = which
        return chunk * self._streams + stream

    def _ids(self, which: Which) -> dict[str, int]:
        chunk = which[1]
        epoch = sum(reset <= chunk for reset in self._resets)
        return {"call_id": self.call_id(which), "chunk_index": chunk, "cache_epoch": epoch}
